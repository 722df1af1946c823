# SPDX-License-Identifier: Apache-2.0
"""Analytic models in the Aspen language: read, priced, turned into formulas, messages, programs and traces."""
