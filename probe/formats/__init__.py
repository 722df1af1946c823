# SPDX-License-Identifier: Apache-2.0
"""Data that stages hand on: plain data classes, and the files they are kept in."""
