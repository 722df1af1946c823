# SPDX-License-Identifier: Apache-2.0
"""Cost and use of the instruction-exact tracers: `scripts/bench exact`."""
