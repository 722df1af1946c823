# SPDX-License-Identifier: Apache-2.0
"""What building without root and without CRIU costs, and whether it gives the same: `scripts/bench rootless`."""
