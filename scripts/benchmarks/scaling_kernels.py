# SPDX-License-Identifier: Apache-2.0
"""Kernels like NAS's: curves through 1 to 32 ranks against runs of 64 ranks, and of a size that no curve has seen.

Computing on 1 and 2 cores is that of real runs; everything from 2 ranks on has the network of SimGrid's SMPI, which
runs all ranks in turn. Computing is processor time in both, so that other load disturbs it little.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.applications.application import read_application
from probe.applications.inputs import configuration
from probe.scaling.bench import Measured, Order, order, run_of
from probe.scaling.model import Predicted, fit_kernel
from probe.store.parallel_run import ParallelRun

ROOT = Path(__file__).parents[2]
SIZES, ASKED = (1, 2, 4, 8, 16, 32), 64
BARS = {"computing": 0.10, "mpi": 0.26, "total": 0.08}
"""Of ComPat D4.3, table 4: relative errors."""

_REPEATS, _REAL_REPEATS, _SEEN = 3, 5, 5
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


CASES = (Case("ep", 200_000_000, 4, 10), Case("cg", 262_144, 6, 15), Case("ft", 8_388_608, 4, 10))
SMALL = Case("ep", 20_000_000, 2, 5)


class Simulated:
    """The kernels built for both worlds, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sources = [ROOT / "pintools" / "mpi" / "times.c", ROOT / "tests" / "programs" / "mpi_kernel.c"]
        (folder / "clock.c").write_text(_CLOCK)
        # The library of MPI times asks for MPI's clock by this name: real runs get that of the process.
        clock = ["-DPMPI_Wtime=probe_processor_seconds", folder / "clock.c"]
        for compiler, name, more in (("smpicc", "simulated", []), ("mpicc", "real", clock)):
            command = [compiler, "-O2", "-DPROBE_NO_IO", "-o", folder / name, *more, *sources, "-lm"]
            subprocess.run(command, check=True, capture_output=True)
        (folder / "platform.xml").write_text(_PLATFORM)
        (folder / "hosts").write_text("".join(f"node-{number}\n" for number in range(ASKED)))

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
        machine = ["-platform", self.folder / "platform.xml", "-hostfile", self.folder / "hosts"]
        with tempfile.TemporaryDirectory(dir=self.folder) as times:
            subprocess.run(
                ["smpirun", "-np", str(ranks), *machine, "--cfg=smpi/host-speed:10Gf", "--log=root.thres:error",
                 *program],
                check=True, capture_output=True, env={**os.environ, "PROBE_MPI_TIMES": times, "TMPDIR": times},
            )  # fmt: skip
            reports = [(Path(times) / f"rank-{rank}.json").read_text() for rank in range(ranks)]
        lines = [f"probe-bench cores {ASKED}", "probe-bench run 1 2 0", *(f"probe-bench rank {r}" for r in reports)]
        return run_of(self.order(case, ranks, steps), "\n".join(lines), Measured())

    def real(self, case: Case, ranks: int) -> float:
        """Processor seconds of computing on so many cores of this machine: the median of some runs."""
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
        return statistics.median(found)


def with_computing(run: ParallelRun, computing: float) -> ParallelRun:
    """The run with computing measured elsewhere: the rest stays."""
    return replace(run, runtime=run.runtime - (run.computing or 0.0) + computing)


def errors_of(predicted: Predicted, seen: Sequence[ParallelRun]) -> dict[str, Any]:
    """Median times of runs, what was predicted, relative errors, and how far the runs are apart (largest / least)."""
    found: dict[str, Any] = {}
    for name, value, times in (
        ("computing", predicted.parts["computing"], [run.computing or 0.0 for run in seen]),
        ("mpi", predicted.parts["mpi"], [run.mpi or 0.0 for run in seen]),
        ("total", predicted.seconds, [run.runtime for run in seen]),
    ):
        usual = statistics.median(times)
        apart = (max(times) - min(times)) / usual
        found[name] = {"seen": usual, "predicted": value, "error": value / usual - 1, "apart": apart}
    held = sum(predicted.low <= run.runtime <= predicted.high for run in seen)
    return {**found, "low": predicted.low, "high": predicted.high, "held": held, "runs": len(seen)}


def measure_case(simulated: Simulated, case: Case, real: bool = True) -> dict[str, Any]:
    """The record of one kernel."""
    runs = [simulated.run(case, ranks, case.steps) for ranks in SIZES for _ in range(_REPEATS)]
    counted = {ranks: statistics.median(r.computing or 0.0 for r in runs if r.cores == ranks) for ranks in (1, 2)}
    measured = {ranks: simulated.real(case, ranks) for ranks in (1, 2)} if real else counted
    used = [with_computing(run, measured[run.cores]) if real and run.cores in measured else run for run in runs]
    model = fit_kernel(used)
    record: dict[str, Any] = {
        "kernel": case.name,
        "real": measured,
        "counted": counted,
        "curves": {part: str(curve) for part, curve in model.parts.items()},
        "runs": [[run.cores, run.computing, run.mpi] for run in used],
    }
    for what, steps in (("more ranks", case.steps), ("unseen size", case.unseen)):
        seen = [simulated.run(case, ASKED, steps) for _ in range(_SEEN)]
        record[what] = errors_of(model.predict(ASKED, float(steps)), seen)
        record[what]["seen_runs"] = [[run.computing, run.mpi] for run in seen]
    return record


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """The record: one entry for each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        simulated = Simulated(Path(folder))
        found = []
        for case in CASES:
            say(f"bench: {case.name} on 1 to {max(SIZES)} ranks, and on {ASKED}")
            found.append(measure_case(simulated, case))
    return {"name": "scaling", "kernels": found}
