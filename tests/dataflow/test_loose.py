# SPDX-License-Identifier: Apache-2.0
"""The loose engine: times that follow by hand, the same ones each time, memory told before it starts."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from data_applications import MICROSCOPE, TITAN, described, machine

from checkpoint.compiled import built
from checkpoint.errors import ModelInvalid, NodeUnfit
from probe.dataflow.application import read_data_application
from probe.dataflow.engines import LOOSE, LOOSE_SOURCES, OPTIONS, Simulation, engine_of, simulate, sources
from probe.dataflow.machine import read_disk_machine
from probe.dataflow.work import Placed, place

READ = 0.001 + 1.0 + 0.0001 + 0.1
"""Controller, platter, bus for a block of 1 MB on the plain machine."""

OUT, LATENCY = 1.0, 0.01


def placed(folder: Path, base: dict[str, Any], nodes: int, *changes: tuple[str, str], **changed: Any) -> Placed:
    application = read_data_application(described(folder, base, **changed))
    return place(application, read_disk_machine(machine(folder, *changes)), nodes)


def simulated(folder: Path, base: dict[str, Any], nodes: int, *changes: tuple[str, str], **changed: Any) -> Simulation:
    compute = {**base, **changed}["compute"]
    return simulate(placed(folder, base, nodes, *changes, **changed), compute, engine_of(LOOSE), limit=60)


def test_one_block_on_one_node_is_read_and_computed(tmp_path: Path) -> None:
    found = simulated(tmp_path, TITAN, 1)
    assert found.seconds == pytest.approx(READ + 0.5)
    assert (found.blocks, found.messages, found.epochs) == (1, 0, 1)
    assert found.busy.disk == pytest.approx(1.001 / found.seconds)
    assert found.busy.bus == pytest.approx(0.1001 / found.seconds)
    assert found.busy.processor == found.busy.busiest_processor == pytest.approx(0.5 / found.seconds)


def test_a_message_takes_latency_and_length_over_bandwidth(tmp_path: Path) -> None:
    """One block that two nodes need: read, sent once, computed there."""
    found = simulated(tmp_path, TITAN, 2, grid=[2, 1])
    assert found.seconds == pytest.approx(READ + LATENCY + OUT + 0.5)
    assert found.messages == 1


def test_both_ends_of_the_network_are_taken_in_turn(tmp_path: Path) -> None:
    """Two nodes send a block to two others. Where both begin with the same one, the last message has waited."""
    pathfinder = {"family": "pathfinder", "compute_per_io": 1, "grid": [2, 1], "blocks": 2, "compute": 0.0}
    times = set()
    for seed in range(1, 9):
        found = simulated(tmp_path, TITAN, 4, seed=seed, **pathfinder)
        assert found.messages == 4
        assert found.busy.sending == found.busy.receiving == pytest.approx(OUT / found.seconds)
        times.add(round(found.seconds - READ - LATENCY, 6))
    assert times == {2 * OUT, 3 * OUT}


def test_pathfinder_computes_on_other_nodes(tmp_path: Path) -> None:
    """One node reads, three get the block, in turn."""
    found = simulated(tmp_path, TITAN, 4, family="pathfinder", grid=[3, 1])
    assert found.messages == 3 and found.seconds == pytest.approx(READ + LATENCY + 3 * OUT + 0.5)


def test_an_epoch_begins_when_all_of_the_last_one_is_done(tmp_path: Path) -> None:
    """Two blocks at once: the second is read while the first is computed. One at once: it is not."""
    beside = simulated(tmp_path, TITAN, 1, blocks=2, epoch=2)
    assert beside.seconds == pytest.approx(READ + 1.001 + 0.5) and beside.epochs == 1
    apart = simulated(tmp_path, TITAN, 1, blocks=2, epoch=1)
    assert apart.seconds == pytest.approx(2 * (READ + 0.5)) and apart.epochs == 2


def test_disks_of_a_node_read_at_once_and_share_its_buses(tmp_path: Path) -> None:
    four = ("per_node = 1", "per_node = 4")
    found = simulated(tmp_path, TITAN, 1, four, blocks=4, compute=0.0)
    assert found.seconds == pytest.approx(1.001 + 4 * 0.1001)
    two = simulated(tmp_path, TITAN, 1, four, ("[bus]", "[bus]\nper_node = 2"), blocks=4, compute=0.0)
    assert two.seconds == pytest.approx(1.001 + 2 * 0.1001)


GRAPH = {
    "operations": {"r": "read", "c": "compute", "d": "compute", "s": "send"},
    "edges": ["r -> c", "c -> d", "d -> s"],
}


def test_a_graph_of_the_users_own(tmp_path: Path) -> None:
    """Two computations of each block, then the client gets it."""
    found = simulated(tmp_path, TITAN, 1, family="graph", graph=GRAPH)
    assert found.seconds == pytest.approx(READ + 2 * 0.5 + OUT) and found.messages == 1


def uniform(seed: int, number: int, which: int) -> float:
    """splitmix64, as blocks.c has it."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + number * 0xD1342543DE82EF95 + which * 0x2545F4914F6CDD1D) & mask
    for _ in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        if _ == 0:
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
    return (z >> 11) * 2.0**-53


def test_seek_and_rotation_of_a_disk_under_queries(tmp_path: Path) -> None:
    """The same queries and the same disk, written here a second time."""
    capacity, turn, rate, size = 1e8, 60 / 5400, 1e6, 1e4
    changes = (("[0.0, 0.0]", "[0.002, 0.02]\nrpm = 5400"), ("1e9", "1e8"))
    found = simulated(tmp_path, MICROSCOPE, 1, *changes, seed=7)
    now = end = 0.0
    for query in range(40):
        sheet = int(uniform(7, query, 0) * 6)
        left, top = int(uniform(7, query, 1) * 18), int(uniform(7, query, 2) * 27)
        free = bus = now
        for row in range(4):
            for column in range(3):
                offset = (((sheet * 30 + top + row) * 20) + left + column) * size
                distance = abs(offset - end) / capacity
                at = free + 0.001 + (0.002 + 0.018 * distance if distance else 0.0)
                at += ((offset / (rate * turn)) % 1 - (at / turn) % 1 + 1) % 1 * turn
                end, free = offset + size, at + size / rate
                bus = max(bus, free) + 0.0001 + size / 1e7
        now = bus
    assert found.seconds == pytest.approx(now)
    assert (found.blocks, found.epochs) == (480, 40)


@pytest.mark.parametrize(
    ("base", "nodes", "changed"),
    [
        (TITAN, 12, {"blocks": 3000, "polar": 0.1, "extent": [8.0, 4.0]}),
        (TITAN, 12, {"blocks": 3000, "polar": 0.1, "query": "africa", "block_bytes": 1e5}),
        (TITAN, 8, {"blocks": 700, "polar": 0.0, "query": [-180, 170, -90, 10], "extent": [200.0, 40.0], "epoch": 3}),
        (TITAN, 16, {"family": "pathfinder", "blocks": 500, "polar": 0.2}),
        (MICROSCOPE, 7, {"compute": 0.01, "result_bytes": 1e3}),
        (TITAN, 4, {"family": "graph", "graph": GRAPH, "blocks": 50}),
    ],
)
def test_every_run_is_the_same_and_sanitizers_find_nothing(
    tmp_path: Path, base: dict[str, Any], nodes: int, changed: dict[str, Any]
) -> None:
    more = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    checked = built("loose-checked", sources(*LOOSE_SOURCES), (*OPTIONS, *more), libraries=("-lm",), place=tmp_path)
    work = placed(tmp_path, base, nodes, ("capacity = 1e9", "capacity = 1e12"), **changed)
    # The engine ends without giving its memory back: its process ends with it.
    said = subprocess.run([checked], input=work.text(0.1), capture_output=True, text=True, env={"ASAN_OPTIONS": "detect_leaks=0"})  # fmt: skip  # noqa: E501
    assert (said.returncode, said.stderr) == (0, "")
    first, second = (simulate(work, 0.1, engine_of(LOOSE), limit=60) for _ in range(2))
    assert (first.seconds, first.messages, first.events) == (second.seconds, second.messages, second.events)
    assert f"seconds {first.seconds:.9g} " in said.stdout
    assert first.blocks > 0


def test_blocks_are_those_that_meet_the_query(tmp_path: Path) -> None:
    """Uniform over the sphere but for those at the poles: the share of the window's area, for small blocks."""
    small = {"polar": 0.0, "extent": [1e-6, 1e-6], "blocks": 40000, "block_bytes": 100.0, "compute": 0.0}
    west, east, south, north = -20.0, 52.0, -35.0, 38.0
    found = simulated(tmp_path, TITAN, 4, query=[west, east, south, north], **small)
    area = (east - west) / 360 * (math.sin(math.radians(north)) - math.sin(math.radians(south))) / 2
    assert found.blocks == pytest.approx(area * 40000, rel=0.03)
    half = simulated(tmp_path, TITAN, 4, query=[-180, 180, 0, 90], **small)
    assert half.blocks == pytest.approx(20000, rel=0.03)


def test_a_grid_divides_the_work(tmp_path: Path) -> None:
    """A small block has one consumer; a wide one has a consumer in each column, and wraps around the date line."""
    small = {"polar": 0.0, "extent": [1e-6, 1e-6], "blocks": 400, "block_bytes": 100.0}
    assert simulated(tmp_path, TITAN, 4, grid=[4, 1], **small).messages == pytest.approx(300, rel=0.1)
    wide = simulated(tmp_path, TITAN, 4, grid=[4, 1], **{**small, "extent": [359.0, 1e-6]})
    assert wide.messages == 1200


def test_memory_is_told_before_it_starts(tmp_path: Path) -> None:
    """A million nodes with epochs of a million blocks."""
    work = placed(tmp_path, TITAN, 1 << 20, blocks=1 << 38, block_bytes=1.0, epoch=1 << 20, polar=0.0)
    with pytest.raises(
        NodeUnfit, match=r"simulating needs [\d.e+]+ GB of memory, [\d.e+]+ GB are free; simulate fewer"
    ):
        simulate(work, 0.1, engine_of(LOOSE), limit=60)


def test_what_no_simulation_ends_with(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="no block meets the query: every epoch is empty"):
        simulated(tmp_path, TITAN, 1, polar=0.0, extent=[1e-9, 1e-9], query=[0, 1e-9, 0, 1e-9])
    long = placed(tmp_path, TITAN, 64, blocks=2_000_000, block_bytes=1.0, polar=0.5)
    with pytest.raises(ModelInvalid, match="was not over after 0 s: allow more with --limit"):
        simulate(long, 0.1, engine_of(LOOSE), limit=0.2)


def test_shares_of_the_work_are_reported(tmp_path: Path) -> None:
    said: list[float] = []
    work = placed(tmp_path, TITAN, 64, blocks=120_000, block_bytes=1.0, polar=0.9)
    found = simulate(work, 0.1, engine_of(LOOSE), limit=120, report=said.append)
    assert found.blocks == 120_000
    assert said == sorted(said) and all(0 <= share <= 1 for share in said)
