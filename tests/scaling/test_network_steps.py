# SPDX-License-Identifier: Apache-2.0
"""Steps of a network under a curve: read from bandwidths, found by the size of messages, refused where unknown."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_runs import made_runs
from small_probe import ROOT

from checkpoint.errors import ProbeError, StorageError, Unpredictable
from probe.applications.network import Bandwidths, Steps, read_bandwidths
from probe.cli.main import cli
from probe.scaling.bench import _message
from probe.scaling.model import fit_kernel
from probe.store.opening import open_store
from probe.store.parallel_run import ParallelRun
from probe.store.runs import store_runs

_SIZES = tuple(1 << power for power in range(23))


def stepped(size: float) -> float:
    """Seconds of a message: below 64 KB at half the bandwidth."""
    return 1e-6 + size / (1e9 if size >= 65536 else 5e8)


def written(path: Path) -> Path:
    lines = ["# OSU MPI Bandwidth Test", "# Size      Bandwidth (MB/s)"]
    path.write_text("\n".join([*lines, *(f"{size} {1e-6 * size / stepped(size):.6f}" for size in _SIZES)]))
    return path


def runs_of_messages() -> list[ParallelRun]:
    """A volume of 2 MB, gathered: a message has the volume over the cores."""
    made = []
    for run in made_runs((1, 2, 4, 8, 16, 32)):
        size = (1 << 21) / run.cores
        mpi = (run.cores - 1) * stepped(size) if run.cores > 1 else 0.0
        computing = run.computing or 0.0
        made.append(replace(run, mpi=mpi, runtime=computing + mpi, notes={"mpi_message": f"{size:.0f}"}))
    return made


def test_a_step_below_all_runs_is_predicted(tmp_path: Path) -> None:
    bandwidths = read_bandwidths(written(tmp_path / "network.txt"))
    runs, truth = runs_of_messages(), 63 * stepped((1 << 21) / 64)
    known = fit_kernel(runs, bandwidths=bandwidths)
    assert known.predict(64, 1.0).parts["mpi"] == pytest.approx(truth, rel=0.05)
    assert known.part_seconds("mpi", 64, 1.0) == known.predict(64, 1.0).parts["mpi"]
    assert known.fitted_seconds() == pytest.approx([run.runtime for run in runs], rel=0.02)
    assert fit_kernel(runs).predict(64, 1.0).parts["mpi"] < 0.6 * truth


def test_sizes_of_messages_follow_a_power_of_the_cores() -> None:
    flat = Bandwidths(np.array([1.0, 1e3, 1e6, 1e9]), np.array([1.0, 1e3, 1e6, 1e9]) / 1e9)
    steps = Steps(flat, np.array([2.0, 4.0, 8.0]), np.array([4096.0, 1024.0, 256.0]))
    assert steps.messages(np.array([1.0, 2.0, 8.0, 32.0])) == pytest.approx([16384, 4096, 256, 16])
    assert steps(np.array([2.0, 64.0])) == pytest.approx([1, 1]), "a straight line has no steps"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n2 4\n3 5\n", "3 sizes of messages, at least 4"),
        ("1 2\n2\n4 5\n8 9\n", "line 2: '2' is no size and bandwidth"),
        ("1 2\n2 x\n4 5\n8 9\n", "line 2: '2 x' is no size and bandwidth"),
        ("1 2\n4 3\n2 5\n8 9\n", "line 3: sizes must grow"),
        ("1 2\n2 0\n4 5\n8 9\n", "line 2: size and bandwidth must be above 0"),
        ("1 2\n2 nan\n4 5\n8 9\n", "line 2: size and bandwidth must be above 0"),
        ("", "0 sizes of messages"),
    ],
)
def test_other_files_are_no_bandwidths(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "network.txt"
    path.write_text(text)
    with pytest.raises(ProbeError, match=message):
        read_bandwidths(path)
    with pytest.raises(StorageError, match="No such file"):
        read_bandwidths(tmp_path / "none.txt")


def test_runs_without_sizes_of_messages_are_refused(tmp_path: Path) -> None:
    bandwidths = read_bandwidths(written(tmp_path / "network.txt"))
    with pytest.raises(Unpredictable, match="a run on 2 cores has no size of messages"):
        fit_kernel(made_runs((1, 2, 4, 8)), bandwidths=bandwidths)
    whole = [replace(run, mpi=None) for run in made_runs((1, 2, 4, 8))]
    with pytest.raises(Unpredictable, match="MPI times were not measured"):
        fit_kernel(whole, bandwidths=bandwidths)


def test_the_size_of_a_message_is_that_of_the_calls_with_the_bytes() -> None:
    calls = [
        {"name": "Allreduce", "calls": 100, "seconds": 1, "bytes": 800},
        {"name": "Alltoall", "calls": 2, "seconds": 1, "bytes": 8e6},
    ]
    assert _message(calls, 4) == pytest.approx(1e6, rel=1e-3)
    assert _message([], 4) == 0


def test_predict_takes_the_network(tmp_path: Path) -> None:
    (tmp_path / "fusion.toml").write_text('name = "fusion"\n[kernel.gem]\nwork = "1"\n')
    network, url = written(tmp_path / "network.txt"), str(tmp_path / "store.db")
    with open_store(tmp_path / "store.db") as store:
        store_runs(store, runs_of_messages())
    words = ["scale", "predict", str(tmp_path / "fusion.toml"), "--node-type", "haswell", "--cores", "64"]
    shown = CliRunner().invoke(
        cli, [*words, "--network", str(network), "--store", url, "--json"], catch_exceptions=False
    )
    parts = {one["part"]: one["seconds"] for one in json.loads(shown.stdout)["predictions"][0]["kernels"][0]["parts"]}
    assert parts["mpi"] == pytest.approx(63 * stepped((1 << 21) / 64), rel=0.05)


def test_the_program_prints_what_is_read(tmp_path: Path) -> None:
    program = tmp_path / "bandwidth"
    source = ROOT / "pintools" / "mpi" / "bandwidth.c"
    subprocess.run(["mpicc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    run = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", program]
    said = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    (tmp_path / "network.txt").write_text(said)
    found = read_bandwidths(tmp_path / "network.txt")
    assert found.sizes[0] == 1 and found.sizes[-1] == 4 << 20
    assert found.seconds[-1] > found.seconds[0]
