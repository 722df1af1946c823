# SPDX-License-Identifier: Apache-2.0
"""A probe on nodes, this one too: sent, started, timed, predicted."""
