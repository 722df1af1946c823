# SPDX-License-Identifier: Apache-2.0
"""Capture of a traced process: its state and its memory, directly as an ordinary user, or by CRIU as root."""
