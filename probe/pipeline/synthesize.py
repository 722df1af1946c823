# SPDX-License-Identifier: Apache-2.0
"""Synthesize memory: leave out contents that a phase's time does not depend on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from checkpoint.compiled import restorer
from checkpoint.flat.image import NAME as IMAGE_NAME
from checkpoint.flat.image import decode
from checkpoint.restore.direct_restore import pages_image
from probe.contents.captured_files import restore_job
from probe.flow.packing_time import SavedPacking
from probe.flow.synthesis import Answer, PhaseToSynthesize, Proved, settle, synthesize_phase, unchanged
from probe.flow.times import PairedTimes, seconds_to_settle
from probe.formats.checked import read
from probe.formats.checkpoints import CapturedPhase, ReducedPhase
from probe.formats.phase_record import Synthetic
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import Build
from probe.progress import Report
from reducer.packed_image import pages_in_place

NAME = "synthesize"
OPTIONS = ("synthetic_data", "synthetic_budget")
FILES = ("synthetic.json", "phase-*-synthetic")

_RESULT = "synthetic.json"
_SHARE_OF_BUILD, _LEAST_SECONDS = 0.5, 15.0
"""What recording the flow and this stage may take together where no budget was given: of the time that the build takes
without them, and the least for this stage. What packing less saves they may take on top."""

_SELF_CHECK_ROUNDS = 3
"""The self-check restores each phase at least so often, which takes about as long as flattening it."""

_SHARE_OF_REST = 0.5
"""What one phase may take of the time that is left: the largest comes first."""

_RESERVE = 1.5
"""Of what judging the phases that are proved so far will take, kept for it."""

_LEAST_LEFT = 1.0
_USED_UP = "the time for it (--synthetic-budget) was used up by larger phases"


def runs(_plan: FullRuns) -> int:
    """None."""
    return 0


def run(build: Build, report: Report) -> None:
    """Replace what can be replaced, in the largest phases first, until the time for it is used up. Meanwhile the pages
    of all phases are in place, since those that are proved are judged by turns."""
    with ExitStack() as there:
        for reduced in build.reduced:
            there.enter_context(pages_in_place(build.folder.file(reduced.folder)))
        replace_data(build, report)
    _use(build)


def replace_data(build: Build, report: Report) -> None:
    """As `run`, of phases whose pages are in place."""
    wanted = build.options.synthetic_budget
    until = time.monotonic() + (_allowed(build) if wanted is None else wanted)
    saved = SavedPacking(build.options.compress) if wanted is None else None
    left = sorted(zip(build.captured, build.reduced, strict=True), key=lambda pair: -pair[1].kept_pages)
    before: Answer | None = None
    judged: dict[int, Proved] = {}
    done = 0
    while left:
        skipped = []
        proved: dict[int, Proved] = {}
        saves: dict[int, float] = {}
        for at, (phase, reduced) in enumerate(left):
            reserve = _RESERVE * seconds_to_settle(_times(proved), _times(judged))
            following = left[at + 1][1] if at + 1 < len(left) else None
            others = [*judged.values(), *proved.values()]
            found, answer = _made(build, phase, reduced, following, until - time.monotonic() - reserve, before, others)
            if isinstance(found, Proved):
                proved[phase.phase] = found
            else:
                build.synthetic[phase.phase] = found
                skipped += [(phase, reduced)] * (found.refused == _USED_UP)
            if saved and answer:
                saves[phase.phase] = saved.seconds(answer.memory, answer.modes)
                # Packing is a part of the build's time, of which half may be added in any case.
                until += _SHARE_OF_BUILD * saves[phase.phase]
            before = answer or before
            report((done + at + 1 - len(skipped)) / (len(build.captured) + 1))
        if not proved:
            break
        settled = dict(zip(proved, settle(list(proved.values()), until, list(judged.values())), strict=True))
        build.synthetic |= settled
        judged |= proved
        until += sum(seconds for number, seconds in saves.items() if number in settled and not settled[number].refused)
        # Now is time left that was kept for judging, and not needed, and what packing less saves for certain.
        done += len(left) - len(skipped)
        left = skipped
    report(1.0)


def _times(phases: Mapping[int, Proved]) -> list[PairedTimes]:
    return [one.times for one in phases.values()]


def _allowed(build: Build) -> float:
    """Seconds: as much of the build's time as may be added to it, without what recording the flow has taken."""
    images, flow = build.flatten_seconds
    runs = build.plan.between * build.timed.wall_seconds
    without = build.folder.seconds - flow + runs + _SELF_CHECK_ROUNDS * images
    return max(_LEAST_SECONDS, _SHARE_OF_BUILD * without - flow)


def _made(
    build: Build,
    phase: CapturedPhase,
    reduced: ReducedPhase,
    following: ReducedPhase | None,
    seconds: float,
    before: Answer | None,
    others: Sequence[Proved],
) -> tuple[Proved | Synthetic, Answer | None]:
    flow = build.flow[phase.phase]
    if flow.flow is None:
        return unchanged(flow.missing), None
    if seconds < _LEAST_LEFT:
        return unchanged(_USED_UP), None
    folder = build.folder.path
    job = restore_job(build.program, build.timed, folder, phase, reduced.folder)
    flat = decode(job.images / IMAGE_NAME)
    ahead = next((folder / following.folder).glob("pages-*.img"), None) if following else None
    target = PhaseToSynthesize(
        job, flat, pages_image(job, flat), restorer(), flow.flow, build.folder.file(_folder(phase.phase)), ahead
    )
    return synthesize_phase(
        target, seconds=seconds * _SHARE_OF_REST, scratch=folder, cpu=build.cpu, before=before, others=others
    )


def _folder(phase: int) -> str:
    return f"phase-{phase}-synthetic"


def _use(build: Build) -> None:
    """From here on the phases are those with synthetic memory."""
    build.own_data = build.reduced
    build.reduced = [
        replace(one, folder=_folder(one.phase)) if not build.synthetic[one.phase].refused else one
        for one in build.reduced
    ]


def save(build: Build) -> None:
    build.folder.write_json(_RESULT, {str(phase): asdict(found) for phase, found in build.synthetic.items()})


def load(build: Build) -> None:
    build.synthetic = build.folder.read(_RESULT, _phases)
    _use(build)


def _phases(value: Any) -> dict[int, Synthetic]:
    return {int(phase): read(Synthetic, found) for phase, found in value.items()}


def doubts(build: Build) -> list[str]:
    """None: each phase says how much of it is real, and why."""
    return []
