# SPDX-License-Identifier: Apache-2.0
"""Time whole builds of programs of a chosen length, beside their own plain runs, and judge what they predict.

One build with the defaults. From its work folder one without plain runs, and one with as many full runs as builds once
made: both differ from the first in the self-check alone, so that only this is done again.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.measurement import load
from benchmarks.disturbance import watched
from benchmarks.measure import REFUSED, full_runs, probe_command
from benchmarks.rootless.measurement import Place, in_work, keep, room
from benchmarks.rootless.programs import Scaled
from benchmarks.rootless.room import fullest

Record = dict[str, Any]

NINE_RUNS = 7
"""Plain runs that make nine full ones, with the traced one and the timing run."""

KINDS: Mapping[str, tuple[str, ...]] = {"default": (), "none": ("--runs", "0"), "nine": ("--runs", str(NINE_RUNS))}
"""Builds, and their options."""

_LATER_RUNS = 2
"""Plain runs behind the predictions; one is before the build."""

_PATIENCE = (1200.0, 12.0)
"""Seconds that a command may take: so many, and so many times the program's own."""

_RUNS = re.compile(r"(\d+) more runs of the program")


def due(programs: Sequence[Scaled], folder: Path, nine: bool, again: bool) -> list[Scaled]:
    """Those without a record of this length; `nine`: or without the build of nine runs."""
    return [one for one in programs if again or not _done(load(folder / f"{one.name}.json"), one, nine)]


def _done(record: Record, program: Scaled, nine: bool) -> bool:
    there = record.get("builds", {})
    return record.get("wanted") == program.seconds and "truth" in record and (not nine or "nine" in there)


def measure(
    programs: Sequence[Scaled], *, data: Path, folder: Path, nine: bool, say: Callable[[str], None]
) -> Iterator[Record]:
    """A record of each, on disk when it is yielded. `nine`: compare with a build of nine runs, too."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        say(f"bench: {program.name}, {program.seconds:.0f} s")
        record: Record = {"program": program.name, "wanted": program.seconds, "date": time.strftime("%Y-%m-%d")}
        begun = time.monotonic()
        try:
            benchmark = program.benchmark(argument(program, data, folder))
            record["command"] = [Path(benchmark.argv[0]).name, *benchmark.argv[1:]]
            with watched() as other:
                record |= _measured(Place(benchmark, data, folder), nine, say)
            record["load"] = other.to_json()
        except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            record["failure"] = f"{type(error).__name__}: {error}"
        record["bench_seconds"] = time.monotonic() - begun
        keep(record, folder)
        yield record


def argument(program: Scaled, data: Path, folder: Path) -> int:
    """The one with which the program takes so many seconds."""
    walls = []
    for few in program.few:
        benchmark = program.benchmark(few)
        walls.append(min(run.wall for run in full_runs(benchmark, benchmark.argv, data, folder, 2)))
    return scaled(program.seconds, program.few, (walls[0], walls[1]))


def scaled(seconds: float, few: tuple[int, int], walls: tuple[float, float]) -> int:
    """An argument from the seconds that two others take: some are there whatever the argument. Raises ValueError."""
    each = (walls[1] - walls[0]) / (few[1] - few[0])
    if each <= 0:
        raise ValueError(f"with the arguments {few} it takes {walls} s: more work takes no longer")
    return max(1, round(few[0] + (seconds - walls[0]) / each))


@dataclass(frozen=True)
class _Built:
    """Seconds of the command, what it printed, and how many full runs it announced behind the traced one."""

    seconds: float
    show: Record
    runs: int | None


def _measured(place: Place, nine: bool, say: Callable[[str], None]) -> Record:
    benchmark = place.benchmark
    plain = full_runs(benchmark, benchmark.argv, place.data, place.folder, 1)
    patience = _PATIENCE[0] + _PATIENCE[1] * plain[0].wall
    place.clear()
    try:
        with fullest(place.work) as peak:
            first = _build(place, "default", patience)
        found = {"room": room(place, peak.bytes, place.probe("default")), **in_work(place.work)}
        builds = {"default": _build_figures(first, 0.0)}
        shared = stages_seconds(place.work)
        for kind in ("none", *(["nine"] if nine else [])):
            say(f"bench: {benchmark.name}, again with {' '.join(KINDS[kind])}")
            builds[kind] = _build_figures(_build(place, kind, patience), shared)
        said = {
            kind: place.command("run", "-q", "--json", place.probe(kind), seconds=patience) for kind in builds
        }  # fmt: skip
    finally:
        place.clear()
    plain += full_runs(benchmark, benchmark.argv, place.data, place.folder, _LATER_RUNS)
    return {**found, **judged(builds, said, [vars(run) for run in plain], first.show["clock"])}


def _build(place: Place, kind: str, patience: float) -> _Built:
    begun = time.monotonic()
    status, out, said = probe_command(
        place.benchmark, place.data, "build", "--json", *KINDS[kind], "-o", str(place.probe(kind)), "--work",
        str(place.work), "--resume", "--", *place.benchmark.argv, seconds=patience,
    )  # fmt: skip
    if status:
        raise ValueError(f"probe build: exit status {status}: {said[-REFUSED:]}")
    announced = _RUNS.search(said)
    return _Built(time.monotonic() - begun, json.loads(out), int(announced[1]) + 1 if announced else None)


def _build_figures(built: _Built, shared: float) -> Record:
    """`shared`: seconds of the stages that the build found done."""
    return {"seconds": shared + built.seconds, "runs": built.runs, "plain_runs": len(built.show["et_ref_runs"])}


def stages_seconds(work: Path) -> float:
    """What the stages took whose results are in a work folder."""
    return float(sum(json.loads((work / "state.json").read_text())["seconds"].values()))


def judged(builds: Record, said: Record, plain: Sequence[Record], clock: str) -> Record:
    """Times of the builds in native ones; errors relative to the mean of the plain runs, by the probe's clock."""
    full = [run[clock] for run in plain]
    truth, wall = statistics.mean(full), statistics.mean(run["wall"] for run in plain)
    for kind, figures in builds.items():
        found = said[kind]["prediction"]
        figures |= {
            "times": figures["seconds"] / wall,
            "error": found["seconds"] / truth - 1,
            "half_width": (found["high"] - found["low"]) / 2 / found["seconds"],
            "held": found["low"] <= truth <= found["high"],
        }
    return {"builds": builds, "full": full, "truth": truth, "wall": wall, "clock": clock,
            "spread": (max(full) - min(full)) / truth}  # fmt: skip
