# SPDX-License-Identifier: Apache-2.0
"""The flow of a probe's phases: recorded when they are made, checked elsewhere, kept by synthetic memory."""
