# SPDX-License-Identifier: Apache-2.0
"""Slurm: predictions in its submissions, and probes as its jobs (docs/slurm.md)."""
