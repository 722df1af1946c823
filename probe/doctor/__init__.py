# SPDX-License-Identifier: Apache-2.0
"""Check what building and running probes needs of this machine, and mend what is missing."""
