# SPDX-License-Identifier: Apache-2.0
"""Choices of how a checkpoint is made smaller, by name."""

from __future__ import annotations

from typing import Literal

Reduction = Literal["drop", "zero", "none"]
REDUCTIONS: tuple[Reduction, ...] = ("drop", "zero", "none")

Compression = Literal["gzip", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = ("gzip", "zstd")
"""What members can be packed with; the first is the interchange format."""
