# SPDX-License-Identifier: Apache-2.0
"""Sources that count on request: hardware counters, and system calls one by one."""
