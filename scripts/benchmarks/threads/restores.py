# SPDX-License-Identifier: Apache-2.0
"""Restore regions of two threads again and again, and count which end; judge repeats, quiet and beside a competitor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from direct_runs import flat_job
from made_probe import made_manifest
from programs import build
from regions import captured_regions
from rivals import rivals

from checkpoint.compiled import restorer
from checkpoint.errors import ProbeError
from checkpoint.processors import processors
from checkpoint.restore.criu_restore import RegionTime
from checkpoint.restore.direct_restore import DirectAgent
from probe.formats.manifest import Manifest
from probe.formats.phase_record import DIRECT, Times
from probe.node.measuring import OTHER_WORK, away_from, measuring_cpu
from probe.node.quietness import QuietJudge

Record = dict[str, Any]

KINDS = ("barrier", "static", "dynamic", "lock")
"""Ways of sharing the work (tests/programs/team.c): at a pthread barrier, by OpenMP's loops, behind a lock."""

_USUAL, _BESIDE, _ROUNDS = 7, 10, "60"
"""Repeats that tell what is usual, as the self-check of a build does; one repeat beside a competitor for so many."""


def measure(restores: int, folder: Path, say: Callable[[str], None]) -> Iterator[Record]:
    """A row for each kind, of its part of so many restores. Raises ValueError on a machine with one processor."""
    cpu = measuring_cpu()
    if cpu is None or len(os.sched_getaffinity(0)) < 2:
        raise ValueError("two threads need two processors")
    for number, kind in enumerate(KINDS):
        say(f"bench: restores of a region shared by {kind}")
        yield _of_kind(kind, restores // len(KINDS) + (number < restores % len(KINDS)), folder, cpu, say)


def _of_kind(kind: str, restores: int, folder: Path, cpu: int, say: Callable[[str], None]) -> Record:
    place = folder / f"region-{kind}"
    (job,) = captured_regions(build("team", folder), _ROUNDS, kind, "2", folder=place / "of", direct=True, threads=2)
    flat_job(job, place)
    failures: list[str] = []
    with away_from(cpu), DirectAgent(job, restorer(), scratch=place, cpu=cpu) as agent:
        judge = QuietJudge(_manifest([agent.repeat() for _ in range(_USUAL)]), cpu)
        ended, flagged = _judged(agent, judge, restores, failures, say)
        with rivals(processors(cpu, 2)[1], 1):
            beside, of_these = _judged(agent, judge, max(1, restores // _BESIDE), failures, say)
    return {
        "kind": kind, "restores": restores, "ended": ended, "flagged": flagged, "beside": beside,
        "flagged_beside": of_these, "failures": failures[:5],
    }  # fmt: skip


def _judged(
    agent: DirectAgent, judge: QuietJudge, times: int, failures: list[str], say: Callable[[str], None]
) -> tuple[int, int]:
    """How many of so many repeats ended, and how many of these something else disturbed."""
    ended = flagged = 0
    for number in range(times):
        judge.begin()
        try:
            time = agent.repeat()
        except ProbeError as error:
            failures.append(str(error))
            continue
        ended += 1
        flagged += judge.why_not(0, DIRECT, time) == OTHER_WORK
        if (number + 1) % 100 == 0:
            say(f"bench: {number + 1} of {times}, {ended} ended, {flagged} flagged")
    return ended, flagged


def _manifest(usual: list[RegionTime]) -> Manifest:
    """Of a probe of two threads with this one phase."""
    manifest, _ = made_manifest(1, 3, threads=2, reference__clock="wall")
    times = Times(tuple(t.wall for t in usual), tuple(t.cpu for t in usual))
    (phase,) = manifest.phases
    return replace(manifest, phases=(replace(phase, direct=times),))
