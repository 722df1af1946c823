# SPDX-License-Identifier: Apache-2.0
"""Accuracy over programs of many kinds and several seeds: `scripts/bench accuracy`."""
