# SPDX-License-Identifier: Apache-2.0
"""MPI programs: recorded once, each rank replayed alone, all of them played on a simulated network."""
