# SPDX-License-Identifier: Apache-2.0
"""The flat image of a checkpoint, which the direct restorer reads."""
