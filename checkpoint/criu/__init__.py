# SPDX-License-Identifier: Apache-2.0
"""CRIU the tool, and the images that it writes and reads."""
