# SPDX-License-Identifier: Apache-2.0
"""A finished probe, looked at and made smaller, not run."""
