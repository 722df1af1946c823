# SPDX-License-Identifier: Apache-2.0
"""Programs and traces that models describe, compiled and replayed by SimGrid."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from aspen_models import MACHINE, flow_in, lulesh

from checkpoint.errors import ModelInvalid, StorageError, ToolMissing
from probe.models.communication import Grid, size_of
from probe.models.expressions import Settings
from probe.models.machine import read_machine
from probe.models.reader import read_model
from probe.models.walk import Flow
from probe.simulation.networks import network_of
from probe.simulation.plan import Step, plan
from probe.simulation.platform import Links, write_platform
from probe.simulation.program import program
from probe.simulation.replay import replay
from probe.simulation.trace import rank_lines, write_trace

CUBE = (4, 4, 4)
LISTING_2 = """
kernel main {
    iterate [10] {
      execute { comm [2] of size [word] as
                allreduce, min }
    }
}
"""
TWO = (2, 1, 1)
LIMIT = 120
COLLECTIVES = """
execute { comm [3] of size [8] as allreduce }  execute { comm [2] of size [4] as reduce, max }
execute { comm [5] of size [1] as bcast }  execute { comm [1] as barrier }
execute { comm [2] of size [16] as alltoall }  execute { comm [2] of size [3] as allgather }
iterate [3] { execute { comm [2] of size [8] as offset(1, 0, 0), periodic } }
"""


def traced(steps: tuple[Step, ...], grid: Grid, folder: Path) -> list[list[str]]:
    """What every rank of the generated program does, as SimGrid saw it."""
    (folder / "made.c").write_text(program(steps, grid, "made"))
    compiled = ["smpicc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "made.c", "-o", "made"]
    subprocess.run(compiled, cwd=folder, check=True, timeout=LIMIT, capture_output=True)
    platform, hosts = write_platform(network_of(f"torus:{size_of(grid)}"), size_of(grid), Links(1e9, 1e-6), folder)
    done = subprocess.run(
        ["smpirun", "-np", str(size_of(grid)), "-platform", platform, "-hostfile", hosts, "-trace-ti", "-trace-file",
         "seen", "--cfg=smpi/simulate-computation:no", "./made"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT, env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {int(path.stem.rpartition("-")[2]): path for path in (folder / "seen_files").iterdir()}
    return [[line.strip() for line in found[rank + 1].read_text().splitlines()] for rank in range(size_of(grid))]


def generated(steps: tuple[Step, ...], grid: Grid) -> list[list[str]]:
    return [list(rank_lines(steps, rank, grid, 1e9)) for rank in range(size_of(grid))]


@pytest.mark.parametrize("phase", [0, 2, 4, 8])
def test_a_generated_programs_trace_is_the_generated_trace(phase: int, tmp_path: Path) -> None:
    """Figures 4 to 7: equal in every message, so equal in every sum over messages."""
    steps = plan(lulesh(phase))
    assert traced(steps, CUBE, tmp_path) == generated(steps, CUBE)


@pytest.mark.parametrize("body", [LISTING_2, COLLECTIVES])
@pytest.mark.parametrize("explicit", [False, True])
def test_loops_written_out_or_not_are_the_same_calls(body: str, explicit: bool, tmp_path: Path) -> None:
    steps = plan(flow_in(tmp_path, body), explicit=explicit)
    seen = traced(steps, TWO, tmp_path)
    assert seen == generated(steps, TWO) == generated(plan(flow_in(tmp_path, body)), TWO)
    if body == LISTING_2:
        # Listing 3: ten calls of two floats.
        assert seen[0][1:-1] == ["0 allreduce 2 0 5"] * 10


def test_ranks_that_do_not_fill_the_grid(tmp_path: Path) -> None:
    """A program made for two ranks refuses to be run with three."""
    (tmp_path / "made.c").write_text(program(plan(flow_in(tmp_path, LISTING_2)), TWO, "made"))
    subprocess.run(["smpicc", "made.c", "-o", "made"], cwd=tmp_path, check=True, timeout=LIMIT, capture_output=True)
    platform, hosts = write_platform(network_of("torus:3"), 3, Links(1e9, 1e-6), tmp_path)
    done = subprocess.run(
        ["smpirun", "-np", "3", "-platform", platform, "-hostfile", hosts, "./made"],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, env={"PATH": "/usr/bin:/bin", "TMPDIR": tmp_path},
    )  # fmt: skip
    assert "this program was made for 2 ranks" in done.stderr


def test_listing_two_gives_listing_three(tmp_path: Path) -> None:
    text = program(plan(flow_in(tmp_path, LISTING_2)), TWO, "mpitest")
    inner = "MPI_Allreduce(sent, received[0], 2, MPI_FLOAT, MPI_MIN, MPI_COMM_WORLD);"
    assert f"    for (long turn_1 = 0; turn_1 < 10; turn_1++) {{\n        {inner}\n    }}\n" in text
    unrolled = program(plan(flow_in(tmp_path, LISTING_2), explicit=True), TWO, "mpitest")
    assert unrolled.count(inner) == 10 and "for (long turn" not in unrolled


@pytest.mark.parametrize("name", ["torus:4x4x4", "dragonfly:p=2", "slimfly:q=5", "fattree:4,3"])
def test_every_network_is_simulated(name: str) -> None:
    found = replay(plan(lulesh()), CUBE, network_of(name), Links(2e9, 1e-6), limit=LIMIT)
    largest = 3 * 8 * 24**2
    assert largest / 2e9 < found.seconds < 0.1 and found.events > 64 * 20


def test_an_uncontended_message_takes_latency_and_bandwidth(tmp_path: Path) -> None:
    """The closed form: one message of 100 MB over one link."""
    body = "execute { comm [100000000] of size [1] as offset(1, 0, 0) }"
    found = replay(plan(flow_in(tmp_path, body)), TWO, network_of("torus:2"), Links(1e9, 1e-6), limit=LIMIT)
    assert found.seconds == pytest.approx(0.1 + 1e-6, rel=0.01)


def test_computing_is_simulated_as_priced(tmp_path: Path) -> None:
    machine = read_machine(read_model(MACHINE), Settings({}))
    flow = flow_in(tmp_path, "iterate [4] { execute { flops [3e9] probe [2] as solver } }")
    steps = plan(flow, machine, probes={"solver": 0.25})
    found = replay(steps, (1, 1, 1), network_of("torus:1"), Links(1e9, 1e-6, speed=3e9), limit=LIMIT)
    assert found.seconds == pytest.approx(4 * 2.5, rel=1e-3)


def test_chance_is_drawn_in_explicit_mode(tmp_path: Path) -> None:
    body = "iterate [400] { probability [0.25] { execute { comm [1] as barrier } } }"
    flow = flow_in(tmp_path, body)
    with pytest.raises(ModelInvalid, match="--mode explicit"):
        plan(flow)
    drawn = len(plan(flow, explicit=True, seed=7))
    assert 60 < drawn < 140 and drawn == len(plan(flow, explicit=True, seed=7))


def test_what_cannot_be_generated(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="messages need two ranks"):
        program(plan(lulesh()), (1, 1, 1), "m")
    many: Flow = flow_in(tmp_path, "iterate [100001] { execute { comm [1] as barrier } }")
    with pytest.raises(ModelInvalid, match="use --mode implicit"):
        program(plan(many, explicit=True), TWO, "m")
    with pytest.raises(ModelInvalid, match="too many turns to unroll"):
        plan(flow_in(tmp_path, "iterate [1e9] { execute { comm [1] as barrier } }"), explicit=True)
    endless = flow_in(tmp_path, "iterate [1e9] { execute { comm [1] as barrier } }")
    with pytest.raises(ModelInvalid, match="lines, more than"):
        write_trace(plan(endless), TWO, tmp_path / "trace")
    big = flow_in(tmp_path, "execute { comm [3e9] of size [1] as bcast }")
    with pytest.raises(ModelInvalid, match="more than MPI's counts"):
        program(plan(big), TWO, "m")
    odd = flow_in(tmp_path, "execute { comm [1] of size [3] as allreduce }")
    with pytest.raises(ModelInvalid, match="only 4 and 8 can be reduced"):
        program(plan(odd), TWO, "m")
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError, match="exists already"):
        write_trace(plan(lulesh()), CUBE, tmp_path / "there")


def test_a_models_name_is_no_code(tmp_path: Path) -> None:
    assert "evil" in program(plan(lulesh()), CUBE, 'evil*/\nint x;"').splitlines()[0]


def test_without_simgrid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="libsimgrid-dev"):
        replay(plan(lulesh()), CUBE, network_of("torus:4x4x4"), Links(1e9, 1e-6))


def test_a_trace_that_cannot_be_replayed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A replay that fails or hangs ends with its command, and leaves nothing."""
    for text, words in (("echo no; exit 3", "smpirun failed: no"), ("echo fine", "named no simulated time: fine"),
                        ("sleep 60 & sleep 60", "was not over after 1 s")):  # fmt: skip
        fake = tmp_path / "smpirun"
        fake.write_text(f"#!/bin/sh\n{text}\n")
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        with pytest.raises(ModelInvalid, match=words):
            replay(plan(lulesh(2)), CUBE, network_of("torus:4x4x4"), Links(1e9, 1e-6), limit=1)
