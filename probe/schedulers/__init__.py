# SPDX-License-Identifier: Apache-2.0
"""Predictions in the forms that schedulers read (docs/schedulers.md)."""
