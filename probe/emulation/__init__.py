# SPDX-License-Identifier: Apache-2.0
"""Resource profiles: what a program uses over time, and programs that use the same."""
