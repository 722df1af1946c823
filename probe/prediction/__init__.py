# SPDX-License-Identifier: Apache-2.0
"""Times in, an interval out: the estimators, their variances and their limits."""
