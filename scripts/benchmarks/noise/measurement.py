# SPDX-License-Identifier: Apache-2.0
"""Build and run each program's probe, quiet and beside a competitor, with full runs around it.

Each program and state leaves a record as soon as it is done, and is not measured again. Records are kept in
data/noise (benchmarks.noise.recorded).
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disturbance import watched
from benchmarks.hosts.processor import this_processor
from benchmarks.measure import environment
from benchmarks.noise.competitor import competing
from benchmarks.noise.recorded import DISTURBED, FOLDER, QUIET, Record, is_due, keep
from benchmarks.programs import Benchmark, resolved
from checkpoint.errors import ProbeError
from probe import BuildOptions, build, run
from probe.formats.intervals import vectors, work
from probe.formats.manifest import Manifest
from probe.formats.profile import Profile, load_profile
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile, load_timing
from probe.node.measuring import away_from, measuring_cpu
from probe.pipeline.validate import interval_run
from probe.prediction.target_error import DEFAULT_BUDGET
from reducer.unpack import open_probe

STATES = (QUIET, DISTURBED)

FULL_RUNS = 8
"""Around the build and the run of its probe: what they meet of the bursts differs from run to run."""


def measure(
    benchmarks: Sequence[Benchmark], states: Sequence[str], folder: Path, data: Path, *, interval: float,
    full_runs: int, again: bool, say: Callable[[str], None], kept: Path = FOLDER,
) -> Iterator[Record]:  # fmt: skip
    """The records that are missing yet below `kept`, or all `again`, each on disk when it is yielded. Builds are made
    below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for benchmark in benchmarks:
        for state in states:
            if again or is_due(benchmark.name, state, kept):
                say(f"bench: {benchmark.name}, {state}")
                record = _one(benchmark, state, folder, data, interval, full_runs)
                keep(record, kept)
                yield record


def _one(benchmark: Benchmark, state: str, folder: Path, data: Path, interval: float, full_runs: int) -> Record:
    record: Record = {"program": benchmark.name, "kind": benchmark.kind, "state": state}
    record["date"], record["machine"] = time.strftime("%Y-%m-%d"), this_processor()
    begun = time.monotonic()
    beside = competing(folder, seed=len(benchmark.name)) if state == DISTURBED else contextlib.nullcontext()
    try:
        with beside, watched() as load:
            record |= _measured(benchmark, folder / f"{benchmark.name}-{state}", data, interval, full_runs)
        record["load"] = load.to_json()
    except (ProbeError, OSError, ValueError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    return {**record, "bench_seconds": time.monotonic() - begun}


def _measured(benchmark: Benchmark, stem: Path, data: Path, interval: float, full_runs: int) -> Record:
    target, work_folder = stem.with_suffix(".probe"), stem.with_suffix(".work")
    begun = time.monotonic()
    build(
        resolved(benchmark), target, options=BuildOptions(interval=interval), cwd=str(data), work=work_folder,
        stdin=str(data / benchmark.stdin), env=environment(benchmark),
    )  # fmt: skip
    built = time.monotonic()
    profile, timed = load_profile(work_folder / "profile.npz"), load_timing(work_folder / "timing.npz")
    selection = Selection.from_json(json.loads((work_folder / "selection.json").read_text()))
    full = _FullRuns(profile, timed, work_folder)
    full.make(full_runs // 2)
    before = time.monotonic()
    result = run(target, budget=DEFAULT_BUDGET, best_effort=True)
    ran = time.monotonic()
    full.make(full_runs - full_runs // 2)
    with open_probe(target) as archive:
        manifest = Manifest.from_json(archive.manifest)
    said = result.to_json()
    by_clock = full.seconds(manifest.reference.clock)
    return {
        "full": by_clock,
        "truth": statistics.mean(by_clock),
        "said": {key: said[key] for key in ("prediction", "estimators", "variances", "clock", "warnings")},
        "seconds": {"build": built - begun, "run": ran - before},
        "manifest": manifest.to_json(),
        "candidate": {str(m.phase): [[t.wall, t.cpu] for t in m.times] for m in result.phases},
        "restorers": {str(m.phase): m.restorer for m in result.phases},
        "intervals": {
            "labels": selection.labels.tolist(),
            "work": work(profile, timed).tolist(),
            "timing": [timed.seconds.tolist(), timed.cpu.tolist()],
            "again": [timed.again_wall.tolist(), timed.again_cpu.tolist()],
            "full": full.intervals(),
            "blocks": vectors(profile, timed).shape[1],
        },
    }


class _FullRuns:
    """Full runs, stamped, on the processor that probes measure on."""

    def __init__(self, profile: Profile, timed: TimedProfile, folder: Path) -> None:
        self._profile, self._timed, self._folder = profile, timed, folder
        self._done: list[Any] = []

    def make(self, count: int) -> None:
        cpu = measuring_cpu()
        with away_from(cpu):
            for _ in range(count):
                self._done.append(interval_run(self._profile, self._timed, self._folder, "full", cpu))

    def seconds(self, clock: str) -> list[float]:
        return [getattr(one, clock) for one in self._done]

    def intervals(self) -> list[list[list[float]]]:
        """Wall and CPU seconds, runs x intervals each."""
        return [np.array([getattr(one, f"interval_{c}") for one in self._done]).tolist() for c in ("wall", "cpu")]
