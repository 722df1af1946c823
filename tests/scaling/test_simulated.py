# SPDX-License-Identifier: Apache-2.0
"""Kernels like NAS's on a simulated network (SimGrid's SMPI): curves through 1 to 32 ranks against 64, and more steps.

SMPI runs the program itself, one rank after the other, and counts its processor time; the network is a model. The same
library counts MPI times, in simulated seconds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import pytest
from small_probe import ROOT

from probe.applications.application import read_application
from probe.applications.inputs import configuration
from probe.scaling.bench import Measured, order, run_of
from probe.scaling.model import fit_kernel
from probe.store.parallel_run import ParallelRun

pytestmark = [pytest.mark.slow(minutes=3), pytest.mark.alone("processor times of milliseconds")]

STEPS, MORE = 6, 16
DESCRIPTION = """
name = "npb"
launch = ""
[kernel.ep]
command = "ep 8000000 {steps}"
parameters = { steps = 6 }
work = "steps"
"""
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="node-" suffix="" radical="0-63" speed="10Gf" bw="1.25GBps" lat="5us"/>
</platform>
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("simulated")
    sources = [ROOT / "pintools" / "mpi" / "times.c", ROOT / "tests" / "programs" / "mpi_kernel.c"]
    command = ["smpicc", "-O2", "-DPROBE_NO_IO", "-o", made / "kernel", *sources, "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    (made / "npb.toml").write_text(DESCRIPTION)
    (made / "platform.xml").write_text(PLATFORM)
    (made / "hosts").write_text("".join(f"node-{number}\n" for number in range(64)))
    return made


def simulated(folder: Path, ranks: int, steps: int) -> ParallelRun:
    application = read_application(folder / "npb.toml")
    kernel = application.kernel("ep")
    wanted = order(application, kernel, configuration(application, kernel, {"steps": float(steps)}), "smpi", ranks)
    program = [folder / "kernel", *kernel.words({"steps": float(steps)}, ranks)]
    machine = ["-platform", folder / "platform.xml", "-hostfile", folder / "hosts", "--cfg=smpi/host-speed:10Gf"]
    with tempfile.TemporaryDirectory(dir=folder) as times:
        subprocess.run(
            ["smpirun", "-np", str(ranks), *machine, "--log=root.thres:error", *program],
            check=True, capture_output=True, env={**os.environ, "PROBE_MPI_TIMES": times, "TMPDIR": times},
        )  # fmt: skip
        reports = [(Path(times) / f"rank-{rank}.json").read_text() for rank in range(ranks)]
    lines = ["probe-bench cores 64", "probe-bench run 1 2 0", *(f"probe-bench rank {report}" for report in reports)]
    return run_of(wanted, "\n".join(lines), Measured())


def test_64_ranks_and_an_unseen_size_are_predicted(folder: Path) -> None:
    """The bars of ComPat D4.3, table 4: computing 10 %, MPI 26 %, total 8 %; here with room for a busy machine."""
    model = fit_kernel([simulated(folder, ranks, STEPS) for ranks in (1, 2, 4, 8, 16, 32) for _ in range(2)])
    for ranks, steps in ((64, STEPS), (64, MORE)):
        seen = [simulated(folder, ranks, steps) for _ in range(3)]
        predicted = model.predict(ranks, steps)
        computing = statistics.median(run.computing or 0.0 for run in seen)
        mpi = statistics.median(run.mpi or 0.0 for run in seen)
        total = statistics.median(run.runtime for run in seen)
        errors = (predicted.parts["computing"] / computing - 1, predicted.parts["mpi"] / mpi - 1,
                  predicted.seconds / total - 1)  # fmt: skip
        print(f"{ranks} ranks, {steps} steps:", ", ".join(f"{100 * error:+.1f} %" for error in errors))
        assert abs(errors[0]) < 0.2 and abs(errors[1]) < 0.5 and abs(errors[2]) < 0.2
