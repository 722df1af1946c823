# SPDX-License-Identifier: Apache-2.0
"""Experiments of the Synapse paper on this machine: `scripts/bench emulation`."""
