# SPDX-License-Identifier: Apache-2.0
"""All that a probe carries beside its checkpoints: files, CRIU, the processor features needed, members to look at."""
