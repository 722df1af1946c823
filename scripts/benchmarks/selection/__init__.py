# SPDX-License-Identifier: Apache-2.0
"""Ways to select, judged on recorded intervals: `scripts/bench selection`."""
