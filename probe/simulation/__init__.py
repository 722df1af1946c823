# SPDX-License-Identifier: Apache-2.0
"""Simulation of applications on networks: plans of ranks, programs and traces, routes, SimGrid."""
