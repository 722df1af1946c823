# SPDX-License-Identifier: Apache-2.0
"""Bring a checkpoint back to life and time it: by CRIU, or by the restorer in checkpoint/restorer."""
