# SPDX-License-Identifier: Apache-2.0
"""Candidate nodes: how they are named, reached and logged in to."""
