# SPDX-License-Identifier: Apache-2.0
"""Put tables into a page of docs, in place of what stood between its two marks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from probe.node.facts import this_node


def measured_here(dates: Iterable[str], more: str = "") -> str:
    """When records of these dates were measured, and on which machine: this one. `more` stands behind the dates."""
    when, node = sorted(dates), this_node()
    return (
        f"Measured {' to '.join(dict.fromkeys((when[0], when[-1])))}{more}: {node['cpu']}, {node['cores']} processors, "
        f"kernel {node['kernel']}"
    )


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what is between both marks. Raises ValueError, and writes nothing, where a mark is not there once."""
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page} does not have each of its marks {begin} and {end} once")
    before, rest = whole.split(begin)
    if end not in rest:
        raise ValueError(f"{page} has its mark {end} before {begin}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")
