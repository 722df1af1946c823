# SPDX-License-Identifier: Apache-2.0
"""Scaling: how long a parallel application takes on other numbers of cores and node types, and what that costs."""
