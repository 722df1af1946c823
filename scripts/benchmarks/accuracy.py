# SPDX-License-Identifier: Apache-2.0
"""How far predictions are from full runs, over programs of different kinds and several seeds.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disturbance import wait_until_quiet, watched
from measure import COMMAND_SECONDS, REFUSED, ROOT, environment, full_runs, probe_command
from programs import Benchmark, resolved

from probe.selection import RANDOM

Record = dict[str, Any]

BASELINE_REPEATS, BASELINE_RUNS = 3, 1
"""Of the random intervals: their direct estimate needs no ET_ref, and their error is not one of repeats."""

_ONCE_RUNS, _SEED_RUNS = 5, 9
_ONCE_SECONDS, _SEED_SECONDS = 10.0, 26.0
"""What a program and a pair cost: full runs, and seconds beside them (restores, and commands that start)."""

_BASELINE = """
import json, sys
from probe import BuildOptions, SelectionOptions, build
asked = json.load(sys.stdin)
selection = SelectionOptions(**asked.pop("selection"))
build(options=BuildOptions(**asked.pop("options"), selection=selection), resume=True, **asked)
"""


@dataclass(frozen=True)
class Settings:
    """interval_seconds: of all probes. repeats: of `probe run`. patience: seconds to wait for a quiet machine."""

    interval_seconds: float
    repeats: int
    patience: float
    keep: bool


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


def estimate(native: Mapping[str, float | None], pairs: int) -> float:
    """Seconds that so many pairs of these programs take (None: native time not known, 4 s are assumed)."""
    seconds = [4.0 if known is None else known for known in native.values()]
    once = sum(_ONCE_RUNS * one + _ONCE_SECONDS for one in seconds)
    return once + (pairs * (_SEED_RUNS * statistics.fmean(seconds) + _SEED_SECONDS) if seconds else 0.0)


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
            baseline = _build_baseline(pair, settings, len(show["phases"]))
            run, random, full = _run_by_turns(pair, settings, show["clock"])
        record["load"] = load.to_json()
        record |= figures(show, run, baseline, random, full)
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    return record


def _build(pair: Pair, settings: Settings) -> Any:
    return pair.command(
        "build", "-q", "--json", "-o", pair.probe("selected"), "--work", pair.work, "--resume", "--seed", pair.seed,
        "--interval", f"{settings.interval_seconds}s", "--stdin", pair.benchmark.stdin, "--", *resolved(pair.benchmark),
    )  # fmt: skip


def _build_baseline(pair: Pair, settings: Settings, phases: int) -> Any:
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
    return pair.command("show", "--json", target)


def _run_by_turns(pair: Pair, settings: Settings, clock: str) -> tuple[Any, Any, list[float]]:
    """The probe, the random intervals, and three full runs around them: what drifts meets all of them."""
    full: list[float] = []

    def in_full() -> None:
        done = full_runs(pair.benchmark, resolved(pair.benchmark), pair.data, pair.folder, 1)[0]
        full.append(done.cpu if clock == "cpu" else done.wall)

    in_full()
    begun = time.monotonic()
    run = pair.command("run", "-q", "--json", "--repeat", settings.repeats, pair.probe("selected"))
    run["seconds"] = time.monotonic() - begun
    in_full()
    random = pair.command("run", "-q", "--json", "--repeat", BASELINE_REPEATS, pair.probe("random"))
    in_full()
    return run, random, full


def figures(show: Record, run: Record, baseline: Record, random: Record, full: Sequence[float]) -> Record:
    """What the tables show, from the JSON of the commands. Errors are relative to the median full run, which is also
    what the interval has to hold; `held_runs` counts the single ones."""
    native = statistics.median(full)
    said = run["prediction"]
    found = {name: run["estimators"][name] for name in ("calibrated", "direct", "strube")}
    found |= {f"random_{name}": random["estimators"][name] for name in ("calibrated", "direct")}
    restores = [abs(p["restore_error"]) for p in show["phases"] if p["restore_error"] is not None]
    return {
        "clock": show["clock"],
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
        "random_selection_error": baseline["errors"]["selection"],
        "restore_error": statistics.median(restores) if restores else None,
        "warnings": [*show["warnings"], *run["warnings"]],
    }
