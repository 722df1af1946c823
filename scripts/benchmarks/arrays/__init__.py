# SPDX-License-Identifier: Apache-2.0
"""Array kernels of one to three loop nests: refusals, what is counted of them, and errors: `scripts/bench arrays`."""
