# SPDX-License-Identifier: Apache-2.0
"""MPI programs of two ranks: what recording costs, ranks alone, whole predictions: `scripts/bench mpi`."""
