# SPDX-License-Identifier: Apache-2.0
"""Give every reader of foreign bytes what its writer would not have written: scripts/fuzz, and a test of seconds."""
