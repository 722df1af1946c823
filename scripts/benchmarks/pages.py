# SPDX-License-Identifier: Apache-2.0
"""Put tables into a page of docs, in place of what stood between its two marks."""

from __future__ import annotations

from pathlib import Path


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what is between both marks. Raises ValueError, and writes nothing, where a mark is not there once."""
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page} does not have each of its marks {begin} and {end} once")
    before, rest = whole.split(begin)
    if end not in rest:
        raise ValueError(f"{page} has its mark {end} before {begin}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")
