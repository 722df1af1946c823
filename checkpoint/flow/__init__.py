# SPDX-License-Identifier: Apache-2.0
"""Verified flow: every block that a restored region executes, its system calls, and the addresses that it uses."""
