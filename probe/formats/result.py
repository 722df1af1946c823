# SPDX-License-Identifier: Apache-2.0
"""The JSON of `probe run`: its version, for those who write it and those who only read it."""

from __future__ import annotations

EMULATION_VERSION = 1
"""Of the JSON of `probe emulate`."""

METHOD = "emulation"
"""Told by what `probe emulate` prints, and by no prediction."""

RESULT_VERSION = 1
"""Raised when a key changes its meaning or goes away."""
