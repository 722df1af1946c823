# SPDX-License-Identifier: Apache-2.0
"""Profiles and emulations of short commands, measured: E.1, E.2, E.4 and E.5 of the Synapse paper, and start-up.

The paper's program is GROMACS on clusters. Here commands stand for it that every machine has, on one node.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import probe
from probe.emulation.kernels import emulator
from probe.emulation.metrics import cpu_seconds
from probe.emulation.plan import SECONDS, WORK, EmulateOptions, make_plan
from probe.emulation.running import known_rates
from probe.emulation.usage import AMOUNT, LEVEL, Column, Header, ProfiledNode, Usage, save_usage

RATES = (1, 5, 10, 20)
BLOCKS = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
THREADS = (1, 2, 4)
_MOVED = 64 << 20
_STEPS_PER_SECOND = 12_000_000

_MEMORY = "held = []\nfor n in range({steps}): held.append(bytearray(1 << 20))\nsum(map(sum, held[:40]))"

Say = Callable[[str], None]


def commands(folder: Path, seconds: float) -> dict[str, list[str]]:
    """Commands of about so many seconds each: computing, reading and writing, memory."""
    data = folder / "data.txt"
    if not data.exists():
        rows = (f"{(n * 2654435761) % (1 << 32):08x} {n % 977}\n" for n in range(400_000))
        data.write_text("".join(rows))
    steps, rounds = round(_STEPS_PER_SECOND * seconds), max(1, round(seconds / 0.7))
    packed = f"for n in $(seq {rounds}); do gzip -6 < {data} > {folder}/packed; done"
    return {
        "awk": ["gawk", f"BEGIN {{ for (n = 0; n < {steps}; n++) x += sin(n) }}"],
        "gzip": ["sh", "-c", packed],
        "sort": ["sh", "-c", f"for n in $(seq {rounds}); do LC_ALL=C sort -S 20M {data} > {folder}/sorted; done"],
        "memory": [sys.executable, "-c", _MEMORY.format(steps=round(100 * seconds))],
    }


def plain(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command, by wait4."""
    begun = time.monotonic()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    return time.monotonic() - begun, used.ru_utime + used.ru_stime


def overhead(folder: Path, lengths: Sequence[float], pairs: int, say: Say) -> Iterator[dict[str, Any]]:
    """E.1: a command with and without a profile, by turns, at each rate."""
    for seconds in lengths:
        command = commands(folder, seconds)["awk"]
        for rate in RATES:
            say(f"bench: E.1, {seconds:g} s at {rate} samples a second")
            bare, profiled = [], []
            for _ in range(pairs):
                bare.append(plain(command))
                usage = probe.profile_usage(command, rate=float(rate))
                profiled.append((usage.seconds, cpu_seconds(usage) or 0.0))
            yield {
                "length": seconds, "rate": rate, "pairs": pairs,
                "wall": _middle(profiled, 0) / _middle(bare, 0) - 1, "cpu": _middle(profiled, 1) / _middle(bare, 1) - 1,
                "noise": _spread([cpu for _, cpu in bare]), "cpu_spread": _spread([cpu for _, cpu in profiled]),
            }  # fmt: skip


def _middle(rows: Sequence[tuple[float, float]], place: int) -> float:
    return statistics.median(row[place] for row in rows)


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def emulated(folder: Path, seconds: float, say: Say) -> Iterator[dict[str, Any]]:
    """E.2 on this node: each command profiled, emulated, and its emulation profiled."""
    for name, command in commands(folder, seconds).items():
        say(f"bench: E.2, {name}")
        usage = probe.profile_usage(command, kernels=True)
        save_usage(usage, folder / f"{name}.usage")
        for equal in (WORK, SECONDS):
            options = EmulateOptions(equal=equal, folder=folder)
            plan = make_plan(usage, options, known_rates(usage, options))
            (folder / "plan").write_text(plan.text(options))
            again = probe.profile_usage(["sh", "-c", f"exec {emulator()} run < {folder / 'plan'} > /dev/null"])
            totals = {n: _ratio(again.total(n), usage.total(n), 1e6) for n in ("read", "written", "resident")}
            totals["cpu_seconds"] = _ratio(cpu_seconds(again), cpu_seconds(usage), 0.01)
            yield {"name": name, "equal": equal, "seconds": usage.seconds, "wall": again.seconds / usage.seconds - 1,
                   "totals": totals}  # fmt: skip


def _ratio(found: float | None, wanted: float | None, least: float) -> float | None:
    """Difference as a share; None where there is less than `least` to compare: what both sides print is in it."""
    return found / wanted - 1 if found is not None and wanted is not None and wanted > least else None


def threads(folder: Path) -> Iterator[dict[str, Any]]:
    """E.4: the profile of the first command of E.2 by one, two and four threads."""
    for count in THREADS:
        result = probe.emulate(folder / "awk.usage", EmulateOptions(threads=count, folder=folder))
        yield {"threads": count, "seconds": result.seconds}


def blocks(folders: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """E.5: the same bytes read and written in blocks of several sizes, on several file systems."""
    for system, folder in folders.items():
        for block in BLOCKS:
            row: dict[str, Any] = {"file_system": system, "block": block}
            for what in ("read", "written"):
                usage = _moving(**{what: float(_MOVED)})
                options = EmulateOptions(equal=SECONDS, threads=1, folder=folder, read_block=block, write_block=block)
                path = _saved(folder, usage)
                row[what] = statistics.median(probe.emulate(path, options).seconds for _ in range(3))
                path.unlink()
            yield row


def start_up(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds from the emulator's start to its first sample."""
    path = _saved(folder, _moving(read=1.0))
    options = EmulateOptions(equal=SECONDS, threads=1, folder=folder)
    found = [probe.emulate(path, options).outcome.start for _ in range(rounds)]
    return {"rounds": rounds, "median": statistics.median(found), "worst": max(found)}


def _saved(folder: Path, usage: Usage) -> Path:
    save_usage(usage, folder / "made.usage")
    return folder / "made.usage"


def _moving(read: float = 0.0, written: float = 0.0) -> Usage:
    """A profile of one sample that moves bytes and does nothing else."""
    import numpy as np

    values = {"cpu_user": 0.0, "cpu_kernel": 0.0, "read": read, "written": written, "resident": 0.0}
    columns = {name: Column(LEVEL if name == "resident" else AMOUNT, "B", "made") for name in values}
    node = ProfiledNode("made", "", "", "", 1, 0.0, 0, 0.0, "")
    header = Header(("made",), {}, "/", 0.0, 0, node, columns, (), {}, ())
    return Usage(header, np.array([0.001]), {name: np.array([value]) for name, value in values.items()})
