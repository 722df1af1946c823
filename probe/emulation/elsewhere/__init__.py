# SPDX-License-Identifier: Apache-2.0
"""Emulations on candidate nodes: what is sent there, what runs there, and what is made of its answers."""
