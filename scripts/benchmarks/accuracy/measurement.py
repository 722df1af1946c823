# SPDX-License-Identifier: Apache-2.0
"""Measure how far predictions are from full runs, over programs of different kinds and several seeds.

Each program is traced, run plainly and timed once. Every seed then gets what depends on it: selection, checkpoints,
reduction, self-check; and beside it a probe of as many intervals chosen at random. Then the program itself and the two
probes run by turns. Each pair of program and seed leaves a record as soon as it is done, and is not measured again.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disturbance import wait_until_quiet, watched
from benchmarks.measure import COMMAND_SECONDS, REFUSED, ROOT, environment, full_runs, probe_command
from benchmarks.programs import Benchmark, resolved
from probe.formats.choices import RANDOM, SelectionOptions
from probe.formats.intervals import interval_times, vectors, work
from probe.formats.profile import load_profile
from probe.formats.reference import Reference
from probe.formats.timing import load_timing
from probe.selection.select import select_phases

Record = dict[str, Any]

BASELINE_REPEATS, BASELINE_RUNS = 3, 1
"""Of the random intervals: their direct estimate needs no ET_ref, and their error is not one of repeats."""

_ONCE_COST, _PAIR_COST, _BASELINE_COST = (5, 10.0), (6, 34.0), (3, 22.0)
"""What a program, a pair, and random intervals beside it cost: full runs, and seconds for all else (some 15 phases)."""

_BASELINE = """
import json, sys
from probe import BuildOptions, SelectionOptions, build
asked = json.load(sys.stdin)
selection = SelectionOptions(**asked.pop("selection"))
build(options=BuildOptions(**asked.pop("options"), selection=selection), resume=True, **asked)
"""


@dataclass(frozen=True)
class Settings:
    """interval_seconds: of all probes. repeats: of `probe run`. patience: seconds to wait for a quiet machine.
    baselines: seeds, the first ones, for which random intervals are made into a probe as well."""

    interval_seconds: float
    repeats: int
    patience: float
    keep: bool
    baselines: int


@dataclass(frozen=True)
class Pair:
    """A program and a seed, with what its commands share. `folder` takes probes and records, `data` the inputs."""

    benchmark: Benchmark
    seed: int
    data: Path
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.benchmark.name}-{self.seed}"

    @property
    def work(self) -> Path:
        return self.folder / f"{self.benchmark.name}.work"

    @property
    def record(self) -> Path:
        return self.folder / f"{self.name}.json"

    def probe(self, kind: str) -> Path:
        return self.folder / f"{self.name}-{kind}.probe"

    def command(self, *arguments: str | Path) -> Any:
        """What `probe ARGUMENTS --json` prints. Raises ValueError where it fails."""
        status, out, said = probe_command(self.benchmark, self.data, *map(str, arguments))
        if status:
            raise ValueError(f"probe {arguments[0]}: exit status {status}: {said[-REFUSED:]}")
        return json.loads(out)


def load(path: Path) -> Record:
    """A record, empty where there is none."""
    found: Record = json.loads(path.read_text()) if path.exists() else {}
    return found


def load_all(folder: Path, programs: Sequence[str], seeds: Sequence[int]) -> list[Record]:
    """The records there are of these pairs, by program and seed."""
    found = [load(folder / f"{program}-{seed}.json") for program in programs for seed in seeds]
    return [record for record in found if record]


def estimate(missing: Mapping[str, Sequence[int]], native: Mapping[str, float], baselines: int) -> float:
    """Seconds that the missing seeds of these programs take (where the native time is not known, 4 s are assumed)."""
    total = 0.0
    for name, seeds in missing.items():
        costs = [_ONCE_COST] * bool(seeds) + [_PAIR_COST] * len(seeds)
        costs += [_BASELINE_COST] * sum(seed <= baselines for seed in seeds)
        total += sum(runs * native.get(name, 4.0) + beside for runs, beside in costs)
    return total


def measure_program(
    benchmark: Benchmark, seeds: Sequence[int], settings: Settings, *, data: Path, folder: Path,
    say: Callable[[str], None],
) -> Iterator[Record]:  # fmt: skip
    """Measure the pairs that have no record of success yet; yields each record, which is on disk then."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [Pair(benchmark, seed, data, folder) for seed in seeds]
    missing = [pair for pair in pairs if "native" not in load(pair.record)]
    if not missing:
        return
    shutil.rmtree(missing[0].work, ignore_errors=True)
    try:
        for pair in missing:
            say(f"bench: {pair.name}")
            begun = time.monotonic()
            record = _measured(pair, settings)
            record["bench_seconds"] = time.monotonic() - begun
            partial = pair.record.with_suffix(".partial")
            partial.write_text(json.dumps(record, indent=1) + "\n")
            partial.replace(pair.record)
            yield record
    finally:
        if not settings.keep:
            shutil.rmtree(missing[0].work, ignore_errors=True)
            for pair in missing:
                for kind in ("selected", "random"):
                    pair.probe(kind).unlink(missing_ok=True)


def _measured(pair: Pair, settings: Settings) -> Record:
    benchmark = pair.benchmark
    record: Record = {
        "program": benchmark.name, "kind": benchmark.kind, "seed": pair.seed, "date": time.strftime("%Y-%m-%d"),
        "interval_seconds": settings.interval_seconds,
    }  # fmt: skip
    try:
        record["quiet"] = wait_until_quiet(settings.patience)
        with watched() as load:
            show = _build(pair, settings)
            phases = len(show["phases"])
            record["random_selection_error"] = random_selection_error(pair, phases)
            with_baseline = pair.seed <= settings.baselines
            if with_baseline:
                _build_baseline(pair, settings, phases)
            run, random, full = _run_by_turns(pair, settings, show, with_baseline)
        record["load"] = load.to_json()
        record |= figures(show, run, random, full)
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    return record


def _build(pair: Pair, settings: Settings) -> Any:
    return pair.command(
        "build", "-q", "--json", "-o", pair.probe("selected"), "--work", pair.work, "--resume", "--seed", pair.seed,
        "--interval", f"{settings.interval_seconds}s", "--stdin", pair.benchmark.stdin, "--", *resolved(pair.benchmark),
    )  # fmt: skip


def random_selection_error(pair: Pair, phases: int) -> float:
    """What so many random intervals make of the run's time, from the timing run, no restore involved."""
    profile, timed = load_profile(pair.work / "profile.npz"), load_timing(pair.work / "timing.npz")
    reference = Reference.from_json(json.loads((pair.work / "reference.json").read_text()))
    eligible = np.ones(timed.intervals, dtype=bool)
    eligible[[0, -1]] = False
    found = select_phases(
        vectors(profile, timed), work(profile, timed), interval_times(timed, reference), eligible,
        SelectionOptions(method=RANDOM, max_phases=phases, seed=pair.seed),
    )  # fmt: skip
    return found.selection_error


def _build_baseline(pair: Pair, settings: Settings, phases: int) -> None:
    """A probe of as many random intervals, from the same trace and timing run, whole: its size does not count."""
    target = pair.probe("random")
    asked = {
        "argv": list(resolved(pair.benchmark)), "output": str(target), "work": str(pair.work),
        "stdin": pair.benchmark.stdin, "selection": {"method": RANDOM, "max_phases": phases, "seed": pair.seed},
        "options": {
            "interval": settings.interval_seconds, "reduce": "none", "repeats": BASELINE_REPEATS, "runs": BASELINE_RUNS,
        },
    }  # fmt: skip
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{_BASELINE}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=pair.data, env=environment(pair.benchmark), input=json.dumps(asked),
        capture_output=True, text=True, timeout=COMMAND_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"random intervals: {done.stderr.strip()[-REFUSED:]}")


def _run_by_turns(
    pair: Pair, settings: Settings, show: Record, with_baseline: bool
) -> tuple[Record, Record | None, list[float]]:
    """The probe, the random intervals, and full runs around them: what drifts meets all of them. Full runs get as many
    processors as the runs of the build did: `show` is what the probe says of itself."""
    full: list[float] = []
    benchmark = replace(pair.benchmark, threads=show["threads"])

    def in_full() -> None:
        done = full_runs(benchmark, resolved(benchmark), pair.data, pair.folder, 1)[0]
        full.append(done.cpu if show["clock"] == "cpu" else done.wall)

    in_full()
    begun = time.monotonic()
    run = pair.command("run", "-q", "--json", "--repeat", settings.repeats, pair.probe("selected"))
    run["seconds"] = time.monotonic() - begun
    in_full()
    random = None
    if with_baseline:
        random = pair.command("run", "-q", "--json", "--repeat", BASELINE_REPEATS, pair.probe("random"))
        in_full()
    return run, random, full


def figures(show: Record, run: Record, random: Record | None, full: Sequence[float]) -> Record:
    """What the tables show, from the JSON of the commands. Errors are relative to the median full run, which is also
    what the interval has to hold; `held_runs` counts the single ones."""
    native = statistics.median(full)
    said = run["prediction"]
    found = {name: run["estimators"][name] for name in ("calibrated", "direct", "strube")}
    for name in ("calibrated", "direct"):
        found[f"random_{name}"] = random["estimators"][name] if random is not None else None
    restores = [abs(p["restore_error"]) for p in show["phases"] if p["restore_error"] is not None]
    return {
        "clock": show["clock"],
        "threads": show["threads"],
        "full": list(full),
        "native": native,
        "estimators": found,
        "errors": {name: None if value is None else value / native - 1 for name, value in found.items()},
        "prediction": said,
        "reach": said["high"] / said["seconds"] - 1,
        "held": said["low"] <= native <= said["high"],
        "held_runs": sum(said["low"] <= one <= said["high"] for one in full),
        "coverage": said["coverage"],
        "variances": run["variances"],
        "phases": len(show["phases"]),
        "intervals": show["intervals"],
        "size_bytes": show["size_bytes"],
        "raw_bytes": show["raw_bytes"],
        "probing_seconds": run["seconds"],
        "tracing": show["tracing_overhead"],
        "timing": show["noise"],
        "reference_drift": show["et_ref_seconds"] / native - 1,
        "selection_error": show["errors"]["selection"],
        "selection_held_out": show["errors"]["selection_held_out"],
        "restore_error": statistics.median(restores) if restores else None,
        "warnings": [*show["warnings"], *run["warnings"]],
    }
