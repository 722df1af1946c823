# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of probes and of their parts: the modules behind scripts/bench."""
