# SPDX-License-Identifier: Apache-2.0
"""Make raw checkpoints into one small file: page store and probe archive.

Nothing is imported here: `reducer.unpack` travels to nodes that have only Python's standard library.
"""
