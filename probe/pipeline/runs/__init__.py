# SPDX-License-Identifier: Apache-2.0
"""Full runs of the program: how many a build makes."""
