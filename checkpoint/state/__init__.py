# SPDX-License-Identifier: Apache-2.0
"""The state of a captured process, whoever captured it."""
