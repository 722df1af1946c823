# SPDX-License-Identifier: Apache-2.0
"""MPI libraries of programs: found, and what is generated and compiled for them."""
