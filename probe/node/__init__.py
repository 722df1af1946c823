# SPDX-License-Identifier: Apache-2.0
"""Everything that happens on the node that a probe runs on: checks, files, restoring, timing.

Standard library alone, Python 3.8 and newer: on a candidate node this is part of the one file that is sent there
(probe/candidates/agent_file.py); `probe run` here and the self-check of `probe build` call it directly.
"""
