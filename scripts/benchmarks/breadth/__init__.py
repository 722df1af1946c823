# SPDX-License-Identifier: Apache-2.0
"""Packaged programs of many kinds, each as its manual shows its use: what is predicted, what refused, and how late."""
