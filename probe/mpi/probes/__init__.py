# SPDX-License-Identifier: Apache-2.0
"""Probes of MPI programs: built of the ranks that stand for others, packed in one file, run for a prediction."""
