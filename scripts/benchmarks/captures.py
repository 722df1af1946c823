# SPDX-License-Identifier: Apache-2.0
"""Measure whether phases captured directly take as long as those that CRIU captured: `python3 -m benchmarks.captures`.

Each program is built directly, and from the same work folder with CRIU's checkpoints: so both probes have the same
phases. Both are then run by turns, restored directly.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.programs import ARRAYS, OWN_PROGRAMS, Benchmark
from benchmarks.synthetic import run_probe

ROOT = Path(__file__).parents[2]
PROGRAMS = (*OWN_PROGRAMS, *ARRAYS)
CAPTURES = ("direct", "criu")
_ROUNDS, _REPEATS = 3, 5


@dataclass(frozen=True)
class Compared:
    """One program. `ratios`: region time captured directly over captured by CRIU, by phase; `whole`: of the predicted
    times. `seconds`: of the two builds, the second without tracing and plain runs. `load`: before and after."""

    name: str
    ratios: dict[int, float]
    whole: float
    seconds: tuple[float, float]
    load: tuple[float, float]


def compare(benchmark: Benchmark, folder: Path) -> Compared:
    """Build both probes of a program below `folder`, and run them by turns."""
    load = os.getloadavg()[0]
    seconds = tuple(_build(benchmark, folder, capture) for capture in CAPTURES)
    ratios, whole = by_turns(lambda capture: _probe(*run_arguments(_path(folder, capture))))
    return Compared(benchmark.name, ratios, whole, (seconds[0], seconds[1]), (load, os.getloadavg()[0]))


def run_arguments(probe: Path) -> tuple[str, ...]:
    """Of the command that runs a probe here, whoever captured its phases."""
    return ("run", "-q", "--json", "--restorer", "direct", "--repeat", str(_REPEATS), str(probe))


def by_turns(run: Callable[[str], Any]) -> tuple[dict[int, float], float]:
    """Ratios of region times by phase, and of the predicted times: of phases captured directly, over those that CRIU
    captured. `run`: what `probe run --json` says of the probe that was captured "direct", or by "criu"."""
    times: dict[str, dict[int, list[float]]] = {capture: defaultdict(list) for capture in CAPTURES}
    predicted: dict[str, list[float]] = {capture: [] for capture in CAPTURES}
    for _ in range(_ROUNDS):
        for capture in CAPTURES:
            said = run(capture)
            predicted[capture].append(float(said["prediction"]["seconds"]))
            for phase in said["phases"]:
                if phase["t_cand"] is not None:
                    times[capture][int(phase["id"])].append(float(phase["t_cand"]))
    ratios = {
        phase: statistics.median(found) / statistics.median(times["criu"][phase])
        for phase, found in times["direct"].items()
        if times["criu"][phase]
    }
    return ratios, statistics.median(predicted["direct"]) / statistics.median(predicted["criu"])


def _path(folder: Path, capture: str) -> Path:
    return folder / f"{capture}.probe"


def _build(benchmark: Benchmark, folder: Path, capture: str) -> float:
    begun = time.monotonic()
    _probe(
        "build", "-q", "--json", "--budget", "0", "--capture", capture, "--work", str(folder / "work"), "--resume",
        "-o", str(_path(folder, capture)), "--", *benchmark.argv,
    )  # fmt: skip
    return time.monotonic() - begun


def _probe(*arguments: str) -> Any:
    return json.loads(run_probe(*arguments).stdout)


def report(found: Sequence[Compared]) -> str:
    """A table of the programs, and the median and the worst of all phases."""
    lines = [
        "| program | phases | median | worst phase | predictions | builds | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        off = [ratio - 1 for ratio in one.ratios.values()]
        lines.append(
            f"| {one.name} | {len(off)} | {statistics.median(off):+.2%} | {max(off, key=abs):+.2%} | "
            f"{one.whole - 1:+.2%} | {one.seconds[0]:.0f} s, {one.seconds[1]:.0f} s | "
            f"{one.load[0]:.1f}, {one.load[1]:.1f} |"
        )
    every = [abs(ratio - 1) for one in found for ratio in one.ratios.values()]
    whole = [abs(one.whole - 1) for one in found]
    lines.append("")
    lines.append(f"phases: median {statistics.median(every):.2%}, worst {max(every):.2%}")
    lines.append(f"predictions: median {statistics.median(whole):.2%}, worst {max(whole):.2%}")
    return "\n".join(lines)


def main(names: Sequence[str]) -> None:
    """Compare the programs of these names, or all."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "data" / "programs")], check=True)
    wanted = [one for one in PROGRAMS if not names or one.name in names]
    if unknown := set(names) - {one.name for one in PROGRAMS}:
        raise SystemExit(
            f"no such program: {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in PROGRAMS)}"
        )
    found = []
    for one in wanted:
        print(f"bench: {one.name}, captured in both ways", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="probe-bench-") as folder:
            found.append(compare(one, Path(folder)))
    print(report(found))


if __name__ == "__main__":
    main(sys.argv[1:])
