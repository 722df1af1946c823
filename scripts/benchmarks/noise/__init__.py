# SPDX-License-Identifier: Apache-2.0
"""Predictions on a machine that is not quiet, and what is recorded there."""
