# SPDX-License-Identifier: Apache-2.0
"""Numbers as commands print them for people."""

from __future__ import annotations

from typing import Any


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def size(value: int) -> str:
    return f"{value / 1e6:.1f} MB" if value >= 1e5 else f"{value} bytes"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.2f}"


def sharing_words(found: dict[str, Any]) -> str:
    """How threads share the work, for people."""
    imbalance = "imbalance not known" if found["imbalance"] is None else f"imbalance {percent(found['imbalance'])}"
    return (
        f"{percent(found['marking'])} of the counted instructions by the thread that tells places, which works alone "
        f"for {percent(found['alone'])} of the time; {imbalance}; not running {percent(found['waiting'])}"
    )
