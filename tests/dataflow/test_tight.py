# SPDX-License-Identifier: Apache-2.0
"""The tight engine: the hardware of the loose one, a program per processor in place of epochs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from data_applications import MICROSCOPE, TITAN, described, machine

from checkpoint.errors import ModelInvalid, NodeUnfit, ToolMissing
from probe.cli.main import cli
from probe.dataflow.application import read_data_application
from probe.dataflow.engines import FLOW, LOOSE, TIGHT, Simulation, engine_of, simulate, sources
from probe.dataflow.machine import read_disk_machine
from probe.dataflow.work import Placed, place
from probe.simulation import smpirun
from probe.simulation.networks import network_of

READ = 0.001 + 1.0 + 0.0001 + 0.1
OUT, LATENCY = 1.0, 0.01


def placed(folder: Path, base: dict[str, Any], nodes: int, **changed: Any) -> Placed:
    application = read_data_application(described(folder, base, **changed))
    return place(application, read_disk_machine(machine(folder, ("capacity = 1e9", "capacity = 1e12"))), nodes)


def simulated(work: Placed, mode: str) -> Simulation:
    compute = work.application.compute
    assert isinstance(compute, float)
    return simulate(work, compute, engine_of(mode), limit=120)


def test_times_that_follow_by_hand(tmp_path: Path) -> None:
    one = simulated(placed(tmp_path, TITAN, 1), TIGHT)
    assert one.seconds == pytest.approx(READ + 0.5) and one.blocks == 1
    two = simulated(placed(tmp_path, TITAN, 2, grid=[2, 1]), TIGHT)
    assert two.seconds == pytest.approx(READ + LATENCY + OUT + 0.5) and two.messages == 1
    assert two.busy.processor == pytest.approx(0.5 / two.seconds)
    three = simulated(placed(tmp_path, TITAN, 4, family="pathfinder", grid=[3, 1]), TIGHT)
    assert three.seconds == pytest.approx(READ + LATENCY + 3 * OUT + 0.5)
    # The next block is asked for when one is done with, and not when all are.
    beside = simulated(placed(tmp_path, TITAN, 1, blocks=3, epoch=2), TIGHT)
    assert beside.seconds == pytest.approx(3 * 1.001 + 0.1001 + 0.5)


@pytest.mark.parametrize(
    ("base", "nodes", "changed"),
    [
        (TITAN, 12, {"blocks": 900, "polar": 0.1, "extent": [8.0, 4.0], "block_bytes": 1e5}),
        (TITAN, 16, {"family": "pathfinder", "blocks": 500, "polar": 0.2}),
        (MICROSCOPE, 7, {"compute": 0.01, "result_bytes": 1e3}),
    ],
)
def test_both_engines_do_the_same_work(
    tmp_path: Path, base: dict[str, Any], nodes: int, changed: dict[str, Any]
) -> None:
    work = placed(tmp_path, base, nodes, **changed)
    loose, tight = simulated(work, LOOSE), simulated(work, TIGHT)
    assert (loose.blocks, loose.messages) == (tight.blocks, tight.messages)
    assert tight.seconds == pytest.approx(loose.seconds, rel=0.3)
    for device in ("sending", "receiving", "processor", "bus"):
        busy = [getattr(one.busy, device) * one.seconds for one in (loose, tight)]
        assert busy[0] == pytest.approx(busy[1], rel=1e-6), device
    again = simulated(work, TIGHT)
    assert (again.seconds, again.events) == (tight.seconds, tight.events)


def test_flows_share_links(tmp_path: Path) -> None:
    """One message as by hand; several over one link have a part each; a torus has fewer links than nodes have ways."""
    two = simulated(placed(tmp_path, TITAN, 2, grid=[2, 1]), FLOW)
    assert two.seconds == pytest.approx(READ + LATENCY + OUT + 0.5, rel=1e-4)
    three = simulated(placed(tmp_path, TITAN, 4, family="pathfinder", grid=[3, 1]), FLOW)
    assert three.seconds == pytest.approx(READ + LATENCY + 3 * OUT + 0.5, rel=1e-4)
    work = placed(tmp_path, TITAN, 16, blocks=64, compute=0.0)
    apart = simulated(work, FLOW)
    ring = simulate(work, 0.0, engine_of(FLOW, network_of("torus:16")), limit=60)
    assert apart.messages == ring.messages == simulated(work, LOOSE).messages
    assert ring.seconds > 1.2 * apart.seconds
    with pytest.raises(ModelInvalid, match="torus:8 has 8 nodes, too few for 16 ranks"):
        simulate(work, 0.0, engine_of(FLOW, network_of("torus:8")), limit=60)


def test_memory_is_used_rightly(tmp_path: Path) -> None:
    """By Valgrind: sanitizers do not know SimGrid's stacks."""
    work = placed(tmp_path, TITAN, 3, blocks=12, polar=0.5, block_bytes=1e5)
    words = engine_of(TIGHT).command(tmp_path, work)
    checked = ["valgrind", "-q", "--error-exitcode=9", "--max-stackframe=100000000", *words]
    factory = "--cfg=contexts/factory:thread"
    done = subprocess.run([*checked, factory], input=work.text(0.1), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"seconds {simulate(work, 0.1, engine_of(TIGHT), limit=60).seconds:.9g} " in done.stdout


def test_without_simgrid_the_loose_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smpirun, "COMMAND", "smpirun-that-is-not-there")
    with pytest.raises(ToolMissing, match=r"libsimgrid-dev, or the Python package simgrid; `--mode loose` needs none"):
        engine_of(TIGHT)
    assert engine_of(LOOSE).mode == LOOSE


def test_the_library_of_the_python_package_serves_where_the_distribution_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package with a library beside its module, as version 4 installs it; here a copy of the distribution's."""
    work = placed(tmp_path, TITAN, 2, grid=[2, 1])
    expected = simulated(work, TIGHT).seconds
    real = smpirun.library().resolve()
    (tmp_path / "simgrid.py").write_text("")
    (tmp_path / real.name).symlink_to(real)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(smpirun, "COMMAND", "smpirun-that-is-not-there")
    assert smpirun.library() == tmp_path / real.name
    assert simulated(work, TIGHT).seconds == expected


def test_declarations_are_those_of_the_headers(tmp_path: Path) -> None:
    """A declaration that differs does not compile beside the distribution's."""
    names = ("actor", "comm", "engine", "host", "mailbox", "semaphore")
    own = next(path for path in sources("simgrid_calls.h") if path.name == "simgrid_calls.h")
    text = "".join(f"#include <simgrid/{name}.h>\n" for name in names) + own.read_text()
    for changed, agrees in ((text, True), (text.replace("sg_sem_init(int ", "sg_sem_init(double "), False)):
        (tmp_path / "both.c").write_text(changed)
        done = subprocess.run(["gcc", "-std=gnu11", "-fsyntax-only", tmp_path / "both.c"], capture_output=True)
        assert (done.returncode == 0) is agrees, done.stderr.decode()


def test_memory_is_told_before_it_starts(tmp_path: Path) -> None:
    work = placed(tmp_path, TITAN, 10_000_000, blocks=10_000_000)
    with pytest.raises(NodeUnfit, match=r"simulating needs [\d.e+]+ GB of memory, [\d.e+]+ GB are free"):
        simulate(work, 0.1, engine_of(TIGHT), limit=60)


def test_the_command(tmp_path: Path) -> None:
    words = ["simulate", str(described(tmp_path, TITAN, blocks=20)), "--machine", str(machine(tmp_path)), "-P", "4"]
    said = json.loads(
        CliRunner().invoke(cli, [*words, "--mode", "tight", "-q", "--json"], catch_exceptions=False).stdout
    )
    assert said["mode"] == "tight" and said["rows"][0]["epochs"] == 0
