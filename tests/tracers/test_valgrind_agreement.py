# SPDX-License-Identifier: Apache-2.0
"""Agreement of the Valgrind tracer with tools that come with Valgrind: exp-bbv and callgrind."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from assembly import SPLIT, STRINGS, assembled
from programs import build, symbols
from tracing import INTERVAL, Traced, program_of

from probe.tracers.stream import read_stream
from probe.tracers.valgrind import build_tool, find_valgrind


@dataclass(frozen=True)
class Tools:
    """The same program under our tool and under Valgrind's, in one environment to the byte: a startup that reads its
    environment takes longer with a longer one."""

    folder: Path

    @staticmethod
    def beside(folder: Path) -> Tools:
        installation = find_valgrind()
        for path in installation.support.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "probe-amd64-linux").symlink_to(build_tool(installation))
        return Tools(folder)

    def run(self, tool: str, path: Path, *arguments: str, options: Sequence[str]) -> None:
        program = program_of(path, *arguments)
        subprocess.run(
            ["setarch", "-R", "valgrind", f"--tool={tool}", "--log-file=log", "--vgdb=no", *options, path, *arguments],
            check=True, stdout=subprocess.DEVNULL, cwd=self.folder,
            env={**program.environment(), "VALGRIND_LIB": str(self.folder)},
        )  # fmt: skip

    def ours(self, path: Path, *arguments: str, interval: int = 1 << 40) -> Traced:
        self.run("probe", path, *arguments, options=["--stream=stream", f"--interval={interval}", "--slack=0"])
        return Traced(read_stream(self.folder / "stream"), "")

    def exp_bbv(self, path: Path, *arguments: str, interval: int) -> list[Counter[int]]:
        """Instructions of each block in each interval, by address."""
        files = ["--bb-out-file=bb", "--pc-out-file=pc"]
        self.run("exp-bbv", path, *arguments, options=[*files, f"--interval-size={interval}"])
        addresses = dict(re.findall(r"^F:(\d+):([0-9a-f]+):", (self.folder / "pc").read_text(), re.M))
        return [
            Counter({int(addresses[number], 16): int(count) for number, count in re.findall(r":(\d+):(\d+)", line)})
            for line in (self.folder / "bb").read_text().splitlines()
            if line.startswith("T")
        ]

    def exp_bbv_in_one(self, path: Path, *arguments: str, most: int) -> tuple[Counter[int], int]:
        """The whole run as one interval, and its instructions, fewer than `most`. They must be known before, and the C
        library's startup need not execute as many each time."""
        self.exp_bbv(path, *arguments, interval=most)
        for _ in range(10):
            total = self.said("Total instructions")
            intervals = self.exp_bbv(path, *arguments, interval=total - 1)
            if self.said("Total instructions") == total:
                (whole,) = intervals
                return whole, total
        pytest.fail("no two runs in turn executed as many instructions")

    def repeats(self) -> tuple[int, int]:
        """After exp-bbv: turns of string instructions, and how many of these there were."""
        return self.said("Total reps"), self.said("Unique reps")

    def said(self, name: str) -> int:
        """A number that exp-bbv has written at its end."""
        found = re.search(rf"{name}: (\d+)", (self.folder / "log").read_text())
        assert found
        return int(found[1])

    def callgrind(self, path: Path, *arguments: str) -> int:
        """Instructions of the whole run."""
        self.run("callgrind", path, *arguments, options=["--callgrind-out-file=cg"])
        found = re.search(r"^totals: (\d+)", (self.folder / "cg").read_text(), re.M)
        assert found
        return int(found[1])


STARTUP = 10_000
"""Instructions by which the C library may differ between two tools before main() and after it, of millions: its startup
asks the processor for its caches, and reads the environment."""


def instructions_by_address(run_of: Traced, path: Path, row: np.ndarray) -> Counter[int]:
    mine, start = run_of.link_addresses(path)
    return Counter(
        {int(a): int(n) for a, n in zip(start, row[mine] * run_of.recorded.instructions[mine], strict=True) if n}
    )


def in_its_own_code(path: Path, counts: Counter[int]) -> Counter[int]:
    """Without the C library's, which the linker puts behind."""
    place = symbols(path)
    return Counter({a: n for a, n in counts.items() if place["main"] <= a < place["call_fini"]})


def agreement_program(name: str, folder: Path, builds: Path) -> tuple[Path, tuple[str, ...]]:
    if name == "callpop":
        return build("callpop", builds, "static"), ("20",)
    body = {"strings": STRINGS, "split": SPLIT.replace("{rounds}", "1000")}[name]
    return assembled(folder, name, body), ()


@pytest.mark.parametrize("name", ["strings", "split", "callpop"])
def test_exp_bbv_finds_the_same_in_every_block(name: str, builds: Path, tmp_path: Path) -> None:
    """Static programs at fixed addresses. exp-bbv writes an interval when it has one instruction more than its size,
    and never the last: with one less than the run has in all, the interval holds them all. A string instruction it
    counts where it ends, which may be in the block behind."""
    tools = Tools.beside(tmp_path)
    path, arguments = agreement_program(name, tmp_path, builds)
    run_of = tools.ours(path, *arguments)
    ours = instructions_by_address(run_of, path, run_of.totals())
    total = int(run_of.recorded.lengths.sum())
    assert sum(ours.values()) == total
    theirs, their_total = tools.exp_bbv_in_one(path, *arguments, most=total * 2)
    assert abs(their_total - total) <= (STARTUP if name == "callpop" else 0)
    if name == "callpop":
        ours, theirs = (in_its_own_code(path, counts) for counts in (ours, theirs))
        assert sum(ours.values()) > 0.99 * total
    moved = sum(abs(ours[a] - theirs[a]) for a in ours.keys() | theirs.keys())
    assert moved <= 2 * tools.repeats()[1]
    assert name != "split" or theirs == ours


def test_intervals_of_exp_bbv_are_the_same_but_for_the_block_on_each_boundary(tmp_path: Path) -> None:
    """exp-bbv cuts inside a block; ours belongs to the interval it begins in."""
    tools = Tools.beside(tmp_path)
    path = assembled(tmp_path, "split", SPLIT.replace("{rounds}", "100000"))
    ours, theirs = tools.ours(path, interval=INTERVAL), tools.exp_bbv(path, interval=INTERVAL)
    rows = ours.recorded.counts.toarray()
    assert len(rows) == len(theirs) + 1 > 4
    longest = int(ours.recorded.instructions.max())
    for row, their in zip(rows, theirs, strict=False):
        our = instructions_by_address(ours, path, row)
        assert all(abs(our[a] - their[a]) <= 2 * longest for a in our.keys() | their.keys())


@pytest.mark.parametrize("name", ["strings", "split", "callpop"])
def test_callgrind_counts_the_same_instructions(name: str, builds: Path, tmp_path: Path) -> None:
    """But for each turn of a string instruction, and without the block whose system call ends the program."""
    tools = Tools.beside(tmp_path)
    path, arguments = agreement_program(name, tmp_path, builds)
    ours = int(tools.ours(path, *arguments).recorded.lengths.sum())
    tools.exp_bbv(path, *arguments, interval=INTERVAL)
    turns, instructions = tools.repeats()
    last = ours + turns - instructions - tools.callgrind(path, *arguments)
    assert last == 3 if name != "callpop" else abs(last) < STARTUP
