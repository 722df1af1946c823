# SPDX-License-Identifier: Apache-2.0
"""Tables 1 to 3 of Uysal et al. beside the engines of `probe simulate DATA.toml`, and runs of 100,000 nodes.

As a program: `python3 -m benchmarks.dataflow table1|table1-disk|table2|table3|many|native` in scripts/. Costs are
processor seconds.
What the paper does not say is that of examples/dataflow/: there is one compute time for each application in all of
tables 2 and 3, and table 1 fits one on one size to predict the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scipy.optimize import brentq

from probe.dataflow.application import DataApplication, Slides, Surface, read_data_application
from probe.dataflow.emulating import emulate_data
from probe.dataflow.engines import LOOSE, TIGHT, Engine, Simulation, engine_of, simulate
from probe.dataflow.machine import DiskMachine, read_disk_machine
from probe.dataflow.prediction import BlockTime
from probe.dataflow.work import place

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / "examples" / "dataflow"
TITAN, PATHFINDER, MICROSCOPE = "titan", "pathfinder", "microscope"
_LIMIT = 7200.0
BARS = {TIGHT: 0.09, LOOSE: 0.13}


@dataclass(frozen=True)
class Row:
    """A row of the paper's: blocks, queries of the microscope, nodes, and seconds by engine, or measured."""

    family: str
    blocks: int
    queries: int
    nodes: int
    seconds: tuple[float, ...]


TABLE_1 = (
    Row(TITAN, 9000, 0, 15, (113, 105, 100)),
    Row(TITAN, 27000, 0, 15, (347, 322, 306)),
    Row(PATHFINDER, 9000, 0, 16, (166, 153, 149)),
    Row(PATHFINDER, 27000, 0, 16, (497, 467, 452)),
    Row(MICROSCOPE, 5000, 200, 15, (127, 122, 119)),
    Row(MICROSCOPE, 7500, 400, 15, (243, 236, 234)),
)
"""Measured, tight, loose. Pathfinder's nodes are 16 here: three for each that reads do not make 15."""

TABLE_2 = (
    Row(TITAN, 27_000, 0, 32, (211, 3426, 182, 6)),
    Row(TITAN, 55_000, 0, 64, (285, 13154, 217, 14)),
    Row(TITAN, 110_000, 0, 128, (604, 116224, 420, 28)),
    Row(PATHFINDER, 55_000, 0, 32, (551, 11595, 496, 22)),
    Row(PATHFINDER, 110_000, 0, 64, (718, 30446, 579, 57)),
    Row(PATHFINDER, 220_000, 0, 128, (1020, 97992, 881, 126)),
    Row(MICROSCOPE, 500_000, 640, 32, (135, 7155, 118, 4)),
    Row(MICROSCOPE, 1_000_000, 1280, 64, (145, 14097, 126, 8)),
    Row(MICROSCOPE, 2_000_000, 2560, 128, (158, 37534, 138, 17)),
)
"""Tight estimate and cost, loose estimate and cost. The queries are ours."""

TABLE_3 = {
    TITAN: (1147, 2276, 4525, 9031, 18028, 36035),
    PATHFINDER: (1579, 2342, 4621, 9177, 18274, 36437),
    MICROSCOPE: (136, 137, 144, 136, 142, 148),
}
"""Estimates for 256 to 8192 nodes."""


def application(family: str) -> DataApplication:
    return read_data_application(_FOLDER / f"{family}.toml")


def sp2() -> DiskMachine:
    return read_disk_machine(_FOLDER / "sp2.toml")


def of_row(row: Row) -> DataApplication:
    """The example with the row's blocks and queries."""
    found = application(row.family)
    if isinstance(found.data, Surface):
        return replace(found, data=replace(found.data, blocks=row.blocks, per_node=False))
    assert isinstance(found.data, Slides)
    slide = (50, 50)
    slides = -(-row.blocks // (slide[0] * slide[1]))
    data = replace(found.data, slides=slides, slides_per_node=False, slide=slide, queries=row.queries)
    return replace(found, data=replace(data, queries_per_node=False))


def run(
    what: DataApplication, nodes: int, engine: Engine, compute: float | None = None, machine: DiskMachine | None = None
) -> Simulation:
    seconds = what.compute if compute is None else compute
    assert isinstance(seconds, float)
    return simulate(place(what, machine or sp2(), nodes), seconds, engine, limit=_LIMIT)


def fitted_compute(row: Row, engine: Engine) -> float:
    """Seconds of a block with which the engine finds what was measured."""
    return float(
        brentq(
            lambda compute: run(of_row(row), row.nodes, engine, compute).seconds - row.seconds[0], 0.0, 4.0, xtol=1e-4
        )
    )


def fitted_disk(row: Row, engine: Engine) -> DiskMachine:
    """The SP2 with disks so many times as slow in seek and transfer that the engine finds what was measured.

    A block's time is the example's.
    """

    def error(slower: float) -> float:
        return run(of_row(row), row.nodes, engine, None, _with_disk(slower)).seconds - row.seconds[0]

    return _with_disk(float(brentq(error, 0.1, 100.0, xtol=0.01)))


def _with_disk(slower: float) -> DiskMachine:
    found = sp2()
    return replace(found, seek=(found.seek[0] * slower, found.seek[1] * slower), disk_rate=found.disk_rate / slower)


def table_1_disk(say: Callable[[str], None]) -> None:
    """As table 1, but constants of the disk are fitted, and not a block's time."""
    say("| application | fitted on | predicted | measured | tight | loose | paper's tight, loose | seek, transfer |")
    say("|---|---|---|---|---|---|---|---|")
    engines = {mode: engine_of(mode) for mode in (TIGHT, LOOSE)}
    for small, large in zip(TABLE_1[::2], TABLE_1[1::2], strict=True):
        for known, asked in ((small, large), (large, small)):
            machines = {mode: fitted_disk(known, engine) for mode, engine in engines.items()}
            errors = {
                mode: run(of_row(asked), asked.nodes, engine, None, machines[mode]).seconds / asked.seconds[0] - 1
                for mode, engine in engines.items()
            }
            found = machines[TIGHT]
            seek = " to ".join(f"{1e3 * one:.2g}" for one in found.seek)
            _say_row(say, known, asked, errors, f" {seek} ms, {found.disk_rate / 1e6:.2g} MB/s |")


def _say_row(say: Callable[[str], None], known: Row, asked: Row, errors: Mapping[str, float], more: str = "") -> None:
    paper = ", ".join(f"{100 * (value / asked.seconds[0] - 1):+.1f} %" for value in asked.seconds[1:])
    ours = " | ".join(f"{100 * error:+.1f} %" for error in errors.values())
    say(f"| {known.family} | {known.blocks} | {asked.blocks} | {asked.seconds[0]:g} s | {ours} | {paper} |{more}")


def table_1(say: Callable[[str], None]) -> None:
    say("| application | fitted on | predicted | measured | tight | loose | paper's tight, loose |")
    say("|---|---|---|---|---|---|---|")
    engines = {mode: engine_of(mode) for mode in (TIGHT, LOOSE)}
    for small, large in zip(TABLE_1[::2], TABLE_1[1::2], strict=True):
        for known, asked in ((small, large), (large, small)):
            errors = {}
            for mode, engine in engines.items():
                found = run(of_row(asked), asked.nodes, engine, fitted_compute(known, engine)).seconds
                errors[mode] = found / asked.seconds[0] - 1
            _say_row(say, known, asked, errors)


def table_2(say: Callable[[str], None]) -> None:
    say("| application | blocks | nodes | tight | cost | loose | cost | cheaper | gap | paper's gap |")
    say("|---|---|---|---|---|---|---|---|---|---|")
    engines = {mode: engine_of(mode) for mode in (TIGHT, LOOSE)}
    for row in TABLE_2:
        tight, loose = (run(of_row(row), row.nodes, engines[mode]) for mode in (TIGHT, LOOSE))
        cheaper = tight.cost_seconds / loose.cost_seconds
        gap, paper = loose.seconds / tight.seconds - 1, row.seconds[2] / row.seconds[0] - 1
        times = (
            f"{tight.seconds:.0f} s | {tight.cost_seconds:.2f} s | {loose.seconds:.0f} s | {loose.cost_seconds:.2f} s"
        )
        say(
            f"| {row.family} | {row.blocks} | {row.nodes} | {times} | {cheaper:.0f} times | {100 * gap:+.0f} % | "
            f"{100 * paper:+.0f} % |"
        )


def table_3(say: Callable[[str], None], families: Iterable[str] = TABLE_3) -> None:
    say("| application | nodes | predicted | paper | times the one before | cost | memory |")
    say("|---|---|---|---|---|---|---|")
    for family in families:
        _growth(say, application(family), [256 << power for power in range(6)], TABLE_3[family])


def many(say: Callable[[str], None]) -> None:
    """Up to 100,000 nodes with equal work for each."""
    say("| application | nodes | predicted | paper | times the one before | cost | memory |")
    say("|---|---|---|---|---|---|---|")
    sizes = [12_500, 25_000, 50_000, 100_000]
    titan, slides = application(TITAN), application(MICROSCOPE)
    assert isinstance(titan.data, Surface) and isinstance(slides.data, Slides)
    even = replace(titan.data, blocks=100, polar=0.0, extent=(0.01, 0.01))
    for what in (replace(titan, data=even), replace(slides, data=replace(slides.data, queries=2))):
        _growth(say, what, sizes, ())


def native(say: Callable[[str], None]) -> None:
    """Two ranks on this machine beside both engines; the machine is that which the emulation measured."""
    say("| application | a block | measured | tight | loose |")
    say("|---|---|---|---|---|")
    for family, compute in ((TITAN, 0.02), (TITAN, 0.005), (MICROSCOPE, 0.02), (PATHFINDER, 0.02)):
        what = _small(family, compute)
        with TemporaryDirectory(dir=ROOT) as folder:
            time = BlockTime(compute, compute, compute, "given")
            found = emulate_data(what, 2, folder=Path(folder), time=time)
            (Path(folder) / "here.toml").write_text(found.machine_text("here"))
            work = place(what, read_disk_machine(Path(folder) / "here.toml"), 2)
        errors = [
            simulate(work, compute, engine_of(mode), limit=_LIMIT).seconds / found.seconds - 1
            for mode in (TIGHT, LOOSE)
        ]
        ours = " | ".join(f"{100 * error:+.1f} %" for error in errors)
        say(f"| {family} | {compute:g} s | {found.seconds:.2f} s | {ours} |")


def _small(family: str, compute: float) -> DataApplication:
    found = replace(application(family), compute=compute)
    if isinstance(found.data, Surface):
        apart = 1 if family == PATHFINDER else 0
        data = replace(found.data, blocks=120, per_node=False, extent=(40.0, 20.0), compute_per_io=apart)
        return replace(found, data=data)
    return replace(found, data=replace(found.data, slides=1, queries=2, slides_per_node=False, queries_per_node=False))


def _growth(say: Callable[[str], None], what: DataApplication, sizes: Sequence[int], paper: Sequence[float]) -> None:
    engine, before = engine_of(LOOSE), 0.0
    for place_in, nodes in enumerate(sizes):
        found = run(what, nodes, engine)
        said = f"{paper[place_in]:g} s" if paper else "-"
        ratio = f"{found.seconds / before:.3f}" if before else "-"
        before = found.seconds
        say(
            f"| {what.name} | {nodes} | {found.seconds:.1f} s | {said} | {ratio} | {found.cost_seconds:.1f} s | "
            f"{found.memory_bytes / 1e6:.1f} MB |"
        )


if __name__ == "__main__":
    tables = {
        "table1": table_1,
        "table1-disk": table_1_disk,
        "table2": table_2,
        "table3": table_3,
        "many": many,
        "native": native,
    }
    tables[sys.argv[1]](lambda line: print(line, flush=True))
