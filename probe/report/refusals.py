# SPDX-License-Identifier: Apache-2.0
"""List what is missing in a report, and why: nodes without a prediction, phases left out, warnings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from probe.report.gathering import Gathered
from probe.report.wording import percent, plain, several

_MOST_NODES_NAMED = 5


@dataclass(frozen=True)
class Refusal:
    """One thing that is missing or doubtful: `what` it concerns, `why`."""

    what: str
    why: str


def nodes_without(found: Gathered) -> list[Refusal]:
    """Nodes that gave no prediction; equal reasons together, the most frequent first."""
    names: dict[str, list[str]] = {}
    for node in found.without:
        reason = node.reason.removeprefix(f"{node.name}: ")
        names.setdefault(reason, []).append(node.name)
    ordered = sorted(names.items(), key=lambda item: -len(item[1]))
    return [Refusal(_named(who), plain(reason, 500)) for reason, who in ordered]


def phases_left_out(found: Gathered) -> list[Refusal]:
    """Phases without a time, on the reference node or on others, and what no phase stands for."""
    m = found.manifest
    listed = [
        Refusal(
            f"phase {p.id} ({percent(p.time_share)} of the time)", f"cannot be restored: {plain(p.criu.failure, 500)}"
        )
        for p in m.phases
        if not p.can_run
    ]
    only_criu = Counter(plain(p.only_criu, 300) for p in m.phases if p.can_run and p.only_criu)
    listed += [
        Refusal(several(count, "phase"), f"only CRIU, with root, can restore: {why}")
        for why, count in only_criu.most_common()
    ]
    kept_whole = Counter(plain(p.checkpoint.whole, 300) for p in m.phases if p.checkpoint.whole)
    listed += [Refusal(several(count, "phase"), f"not reduced: {why}") for why, count in kept_whole.most_common()]
    if m.trimmed_from:
        lost = m.trimmed_from - len(m.phases)
        listed.append(Refusal(several(lost, "phase"), "taken out by `probe trim`; their time is extrapolated"))
    if (dropped := m.selection.dropped_time_share) > 0:
        listed.append(Refusal(f"{percent(dropped, 2)} of the time", "in phases too small to keep, or taken out"))
    listed += _not_measured(found)
    return listed


def _not_measured(found: Gathered) -> list[Refusal]:
    runnable = np.array([p.can_run for p in found.manifest.phases], dtype=bool)
    why: dict[tuple[str, int], list[str]] = {}
    for node in found.nodes:
        lost = np.isnan(node.t_cand) & runnable
        if not lost.any():
            continue
        reasons = [r for r in node.failures.values() if r]
        reason = plain(Counter(reasons).most_common(1)[0][0], 300) if reasons else "the result has no time of them"
        why.setdefault((reason, int(lost.sum())), []).append(node.name)
    listed = [
        Refusal(f"{several(count, 'phase')} on {_named(names)}", f"not measured: {reason}")
        for (reason, count), names in sorted(why.items(), key=lambda item: -len(item[1]))
    ]
    foreign = [node.name for node in found.nodes if node.foreign]
    if foreign:
        listed.append(Refusal(_named(foreign), "measured phases that this probe no longer has (trimmed since)"))
    return listed


def warnings(found: Gathered) -> list[Refusal]:
    """Warnings of the probe and of its results; equal ones together."""
    own = set(found.manifest.warnings)
    listed = [Refusal("the probe", plain(text, 500)) for text in found.manifest.warnings]
    names: dict[str, list[str]] = {}
    for node in found.nodes:
        for text in dict.fromkeys(node.warnings):
            if text not in own:
                names.setdefault(plain(text, 500), []).append(node.name)
    ordered = sorted(names.items(), key=lambda item: -len(item[1]))
    return listed + [Refusal(_named(who), text) for text, who in ordered]


def _named(names: list[str]) -> str:
    shown = ", ".join(plain(name, 60) for name in names[:_MOST_NODES_NAMED])
    more = len(names) - _MOST_NODES_NAMED
    return f"{shown} and {several(more, 'other')}" if more > 0 else shown
