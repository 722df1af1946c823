# SPDX-License-Identifier: Apache-2.0
"""Builds without root and without CRIU: their cost, and whether they give the same: `scripts/bench rootless`."""
