# SPDX-License-Identifier: Apache-2.0
"""Kernels like NAS's: curves through 1 to 32 ranks against runs of 64 ranks, and of a size that no curve has seen.

Computing on 1 and 2 cores is that of real runs; everything from 2 ranks on has the network of SimGrid's SMPI, which
runs all ranks in turn. Computing is processor time in both. What disturbs a run only adds to its time: of seven runs
the shortest one counts, for curves and for what they are held against. Three were too few: on a shared host runs of 64
ranks are up to 96 % apart, although nothing else runs on the machine. As a program:
`python3 -m benchmarks.scaling_kernels [switching] [counted]` in scripts/. With `switching` the curves know the steps of
the network, as pintools/mpi/bandwidth.c measures them on it; with `counted` no clock is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.applications.application import read_application
from probe.applications.inputs import configuration
from probe.applications.network import Bandwidths, read_bandwidths
from probe.scaling.bench import Measured, Order, order, run_of
from probe.scaling.model import Predicted, fit_kernel
from probe.store.parallel_run import ParallelRun

ROOT = Path(__file__).parents[2]
SIZES, ASKED = (1, 2, 4, 8, 16, 32), 64
BARS = {"computing": 0.10, "mpi": 0.26, "total": 0.08}
"""Of ComPat D4.3, table 4: relative errors."""

_REPEATS, _REAL_REPEATS = 7, 5
_LONGEST = 600.0
_PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="node-" suffix="" radical="0-63" speed="10Gf" bw="1.25GBps" lat="5us"/>
</platform>
"""
_CLOCK = """#include <time.h>
double probe_processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
"""


@dataclass(frozen=True)
class Case:
    """A kernel of tests/programs/mpi_kernel.c: its size, steps of the curve's runs, and of the unseen size."""

    name: str
    size: int
    steps: int
    unseen: int


CASES = (Case("ep", 100_000_000, 4, 10), Case("cg", 524_288, 3, 8), Case("ft", 33_554_432, 2, 5))
"""Messages stay above 64 KB on 64 ranks: below, SMPI's network has another bandwidth, which no curve could know."""

SWITCHING = (Case("cg", 262_144, 6, 15), Case("ft", 8_388_608, 4, 10))
"""Messages that go below 64 KB between 32 and 64 ranks, where the network has a step."""


class Simulated:
    """The kernels built for both worlds, in a folder of their own."""

    def __init__(self, folder: Path, counted: bool = False) -> None:
        """counted: the simulated processor is told how much work there is, and no time is measured."""
        self.folder, self.counted = folder, counted
        sources = [ROOT / "pintools" / "mpi" / "times.c", ROOT / "tests" / "programs" / "mpi_kernel.c"]
        (folder / "clock.c").write_text(_CLOCK)
        # The library of MPI times asks for MPI's clock by this name: real runs get that of the process.
        told = ["-DCOUNTED_WORK"] if counted else []
        clock = ["-DPMPI_Wtime=probe_processor_seconds", folder / "clock.c"]
        for compiler, name, more in (("smpicc", "simulated", told), ("mpicc", "real", clock)):
            command = [compiler, "-O2", "-DPROBE_NO_IO", "-o", folder / name, *more, *sources, "-lm"]
            subprocess.run(command, check=True, capture_output=True)
        (folder / "platform.xml").write_text(_PLATFORM)
        (folder / "hosts").write_text("".join(f"node-{number}\n" for number in range(ASKED)))

    def bandwidths(self) -> Bandwidths:
        """Of the simulated network, measured on it."""
        program, source = self.folder / "bandwidth", ROOT / "pintools" / "mpi" / "bandwidth.c"
        subprocess.run(["smpicc", "-O2", "-o", program, source], check=True, capture_output=True)
        said = self._simulate(2, [program], "no", {})
        (self.folder / "network.txt").write_text(said)
        return read_bandwidths(self.folder / "network.txt")

    def _simulate(self, ranks: int, program: Sequence[Path | str], computing: str, environment: dict[str, str]) -> str:
        """What the program prints on so many nodes."""
        machine = ["-platform", self.folder / "platform.xml", "-hostfile", self.folder / "hosts"]
        return subprocess.run(
            ["smpirun", "-np", str(ranks), *machine, "--cfg=smpi/host-speed:10Gf",
             f"--cfg=smpi/simulate-computation:{computing}", "--log=root.thres:error", *program],
            check=True, capture_output=True, env={**os.environ, "TMPDIR": str(self.folder), **environment}, text=True,
        ).stdout  # fmt: skip

    def order(self, case: Case, ranks: int, steps: int) -> Order:
        (self.folder / "npb.toml").write_text(
            f'name = "npb"\nlaunch = ""\n[kernel.{case.name}]\n'
            f'command = "{case.name} {case.size} {{steps}} {{ranks}}"\nparameters = {{ steps = 6 }}\nwork = "steps"\n'
        )
        application = read_application(self.folder / "npb.toml")
        kernel = application.kernel(case.name)
        return order(application, kernel, configuration(application, kernel, {"steps": float(steps)}), "smpi", ranks)

    def run(self, case: Case, ranks: int, steps: int) -> ParallelRun:
        """One run on the simulated network."""
        program = [self.folder / "simulated", case.name, str(case.size), str(steps), str(ranks)]
        with tempfile.TemporaryDirectory(dir=self.folder) as times:
            computing = "no" if self.counted else "yes"
            self._simulate(ranks, program, computing, {"PROBE_MPI_TIMES": times, "TMPDIR": times})
            reports = [(Path(times) / f"rank-{rank}.json").read_text() for rank in range(ranks)]
        lines = [f"probe-bench cores {ASKED}", "probe-bench run 1 2 0", *(f"probe-bench rank {r}" for r in reports)]
        return run_of(self.order(case, ranks, steps), "\n".join(lines), Measured())

    def runs(self, case: Case, ranks: int, steps: int) -> list[ParallelRun]:
        """Some runs that should take equally long."""
        return [self.run(case, ranks, steps) for _ in range(1 if self.counted else _REPEATS)]

    def real(self, case: Case, ranks: int) -> float:
        """Processor seconds of computing on so many cores of this machine: the least of some runs."""
        found = []
        for _ in range(_REAL_REPEATS):
            with tempfile.TemporaryDirectory(dir=self.folder) as times:
                words = [self.folder / "real", case.name, str(case.size), str(case.steps), str(ranks)]
                subprocess.run(
                    ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *words], check=True,
                    capture_output=True, env={**os.environ, "PROBE_MPI_TIMES": times}, timeout=_LONGEST,
                )  # fmt: skip
                reports = [json.loads((Path(times) / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
            found.append(max(report["seconds"] - report["mpi"] for report in reports))
        return min(found)


def with_computing(run: ParallelRun, computing: float) -> ParallelRun:
    """The run with computing measured elsewhere: the rest stays."""
    return replace(run, runtime=run.runtime - (run.computing or 0.0) + computing)


def errors_of(predicted: Predicted, seen: Sequence[ParallelRun]) -> dict[str, Any]:
    """Times of the shortest run, what was predicted, relative errors, and how far the runs are apart."""
    found: dict[str, Any] = {}
    best = min(seen, key=lambda run: run.runtime)
    for name, value, took in (
        ("computing", predicted.parts["computing"], best.computing or 0.0),
        ("mpi", predicted.parts["mpi"], best.mpi or 0.0),
        ("total", predicted.seconds, best.runtime),
    ):
        found[name] = {"seen": took, "predicted": value, "error": value / took - 1}
    longest = max(run.runtime for run in seen)
    held = predicted.low <= best.runtime <= predicted.high
    return {**found, "low": predicted.low, "high": predicted.high, "held": held, "apart": longest / best.runtime - 1}


def measure_case(simulated: Simulated, case: Case, bandwidths: Bandwidths | None = None) -> dict[str, Any]:
    """The record of one kernel. Where work is counted, nothing is measured really. bandwidths: that the curves know."""
    runs = [min(simulated.runs(case, ranks, case.steps), key=lambda run: run.runtime) for ranks in SIZES]
    counted = {run.cores: run.computing or 0.0 for run in runs[:2]}
    measured = counted if simulated.counted else {ranks: simulated.real(case, ranks) for ranks in (1, 2)}
    used = [with_computing(run, measured[run.cores]) if run.cores in measured else run for run in runs]
    model = fit_kernel(used, bandwidths=bandwidths)
    record: dict[str, Any] = {
        "kernel": case.name,
        "real": measured,
        "counted": counted,
        "curves": {part: str(curve) for part, curve in model.parts.items()},
        "runs": [[run.cores, run.computing, run.mpi] for run in used],
    }
    for what, steps in (("more ranks", case.steps), ("unseen size", case.unseen)):
        seen = simulated.runs(case, ASKED, steps)
        record[what] = errors_of(model.predict(ASKED, float(steps)), seen)
        record[what]["seen_runs"] = [[run.computing, run.mpi] for run in seen]
    return record


def measure(words: Sequence[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The records, one of each kernel."""
    cases = SWITCHING if "switching" in words else CASES
    with tempfile.TemporaryDirectory() as folder:
        simulated = Simulated(Path(folder), "counted" in words)
        bandwidths = simulated.bandwidths() if "switching" in words else None
        found = []
        for case in cases:
            say(f"bench: {case.name} {case.size} on 1 to {max(SIZES)} ranks, and on {ASKED}")
            found.append(measure_case(simulated, case, bandwidths))
    return found


def table(records: Sequence[dict[str, Any]]) -> str:
    """The table of docs/scaling.md."""
    lines = [
        "| kernel | asked for | computing | MPI | total | interval held | runs apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records:
        for what in ("more ranks", "unseen size"):
            found = record[what]
            parts = " | ".join(f"{100 * found[part]['error']:+.1f} %" for part in BARS)
            held, apart = "yes" if found["held"] else "no", f"{100 * found['apart']:.0f} %"
            lines.append(f"| {record['kernel']} | {what} | {parts} | {held} | {apart} |")
    return "\n".join(lines)


if __name__ == "__main__":
    made = measure(sys.argv[1:], lambda text: print(text, file=sys.stderr))
    print(json.dumps(made), file=sys.stderr)
    print(table(made))
