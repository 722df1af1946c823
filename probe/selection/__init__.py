# SPDX-License-Identifier: Apache-2.0
"""Intervals in, phases out: clustering, strata, representatives, baselines."""
