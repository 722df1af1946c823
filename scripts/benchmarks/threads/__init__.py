# SPDX-License-Identifier: Apache-2.0
"""Programs whose threads share the work: accuracy, restores, disturbed repeats: `scripts/bench threads`."""
