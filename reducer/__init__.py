# SPDX-License-Identifier: Apache-2.0
"""From raw checkpoints to one small file: page store and probe archive.

Nothing is imported here: `reducer.unpack` travels to nodes that have only Python's standard library.
"""
