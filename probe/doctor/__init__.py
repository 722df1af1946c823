# SPDX-License-Identifier: Apache-2.0
"""What this machine needs to build and run probes, and how that is mended."""
