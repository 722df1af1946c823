# SPDX-License-Identifier: Apache-2.0
"""Numbers and foreign text as the page and the figures show them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

_NO_BREAK = "\u00a0"
"""Between a number and its unit."""


def plain(text: str, most: int = 200) -> str:
    """Text of others in one line: what cannot be printed becomes U+FFFD, and what is too long ends in an ellipsis.

    Names and arguments may hold control characters, which no XML may, and marks that turn the direction of writing.
    """
    shown = "".join(
        c if c.isprintable() or c == _NO_BREAK else " " if c in "\t\n" else "\ufffd" for c in text[: most + 1]
    )
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def command_line(arguments: Sequence[str], most: int = 2000) -> str:
    """A program with its arguments as a shell would take them, shortened in the middle of nothing."""
    return plain(shlex.join(arguments[:200]), most)


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}\u00a0%"


def signed_percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:+.{digits}f}\u00a0%"


def seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if value >= 100:
        return f"{value:.0f}\u00a0s"
    return f"{value:.2f}\u00a0s" if value >= 1 else f"{value * 1e3:.3g}\u00a0ms"


def size(value: float) -> str:
    return (
        f"{value / 1e9:.2f}\u00a0GB"
        if value >= 1e9
        else f"{value / 1e6:.1f}\u00a0MB"
        if value >= 1e5
        else f"{value:.0f} bytes"
    )


def several(number: int, what: str) -> str:
    """`1 phase`, `2 phases`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
