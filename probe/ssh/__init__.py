# SPDX-License-Identifier: Apache-2.0
"""Reach a node over SSH. Nothing here knows what a probe is."""
