# SPDX-License-Identifier: Apache-2.0
"""Predictions for another machine, an emulated one: `scripts/bench nodes`."""
