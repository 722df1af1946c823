# SPDX-License-Identifier: Apache-2.0
"""Networks of MPI programs as they are: measured between two ranks, and described for SimGrid."""
