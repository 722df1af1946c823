# SPDX-License-Identifier: Apache-2.0
"""Data-intensive applications by their blocks: described, simulated on many nodes, and run for real."""
