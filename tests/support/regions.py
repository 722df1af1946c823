# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of regions that test programs mark themselves, without a whole build around them.

A program passes `site_warm`, `site_start` and `site_end` (tests/programs/site.h) once per region, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from programs import symbols
from tracing import program_of

from checkpoint.criu.tool import find_criu
from checkpoint.process.program import Streams
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.state.process_state import ProcessState
from checkpoint.stubs.markers import Marker
from probe.pipeline.capture import capture
from probe.pipeline.runs.boundaries import Place, RegionPlan

SECONDS = 10.0


def no_copies(_plan: RegionPlan, _images: ProcessState) -> Mapping[str, Path]:
    return {}


def captured_regions(
    path: Path,
    *arguments: str,
    folder: Path,
    regions: int = 1,
    direct: bool = False,
    cpu: int | None = None,
    threads: int = 1,
    marking: tuple[int, ...] = (),
    env: Mapping[str, str] | None = None,
    on_dump: Callable[[RegionPlan, ProcessState], Mapping[str, Path]] = no_copies,
) -> list[RestoreJob]:
    """Checkpoints of the first regions of the (not stripped) program at `path`, in `folder`; its standard output is
    in `folder / "stdout"`. `direct`: captured without CRIU. `cpu`: it runs there alone. `threads`: so many share its
    work, and those of `marking` tell places. `env`: variables beside the usual few."""
    image = str(path.resolve())
    places = {name: Marker(image, symbols(path)[name]) for name in ("site_warm", "site_start", "site_end")}

    def place(name: str, count: int) -> Place:
        return Place(places[name], count)

    plans = [
        RegionPlan(n, n, 1, place("site_warm", n), place("site_start", n), place("site_end", n))
        for n in range(1, regions + 1)
    ]
    streams = Streams(folder / "stdout", folder / "stderr")
    folder.mkdir(parents=True, exist_ok=True)
    program = program_of(path, *arguments)
    program = replace(program, threads=threads, marking=marking, env={**program.env, **(env or {})})
    captured = capture(
        cast(Any, SimpleNamespace(program=program, written=())),
        plans,
        criu=None if direct else find_criu(),
        folder=folder,
        streams=streams,
        expected_seconds=SECONDS,
        cpu=cpu,
        on_dump=on_dump,
    )
    return [
        RestoreJob(
            phase=phase.phase,
            images=folder / phase.folder,
            outputs=(str(streams.stdout), str(streams.stderr)),
            folders=(program.cwd,),
            binds=(),
            written=[(str(folder / copy), path) for path, copy in phase.written.items()],
            warm_event=phase.warm_event,
            start_event=phase.start_event,
            end_event=phase.end_event,
            expected_seconds=SECONDS / 100,
            threads=threads,
        )
        for phase in captured
    ]
