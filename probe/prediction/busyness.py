# SPDX-License-Identifier: Apache-2.0
"""Say how busy the nodes were, by their yardsticks (probe/node/yardsticks.py)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from probe.formats.manifest import Manifest
from probe.node.yardsticks import NAMES

LONGEST = 3.0
"""A reading above so many medians of its session was interrupted, and says nothing."""


def slowdowns(readings: Sequence[Sequence[float]]) -> dict[str, float]:
    """How much longer each of NAMES took in the mean than in its fastest tenth, relative; {} without readings."""
    full = [reading for reading in readings if len(reading) == len(NAMES)]
    if not full:
        return {}
    return {name: _slowdown([reading[at] for reading in full]) for at, name in enumerate(NAMES)}


def slowdowns_of_reference(manifest: Manifest) -> dict[str, float]:
    """The same of the reference node in the self-check, by its yardsticks."""
    ways = (way for phase in manifest.phases for way in (phase.criu, phase.direct))
    return slowdowns([reading for way in ways for reading in way.yardsticks])


def said(slower: Mapping[str, float]) -> str:
    """The same for people."""
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in slower.items()) or "not known"


def _slowdown(seconds: list[float]) -> float:
    usual = statistics.median(seconds)
    kept = sorted(one for one in seconds if one <= LONGEST * usual)
    return statistics.mean(kept) / kept[len(kept) // 10] - 1.0
