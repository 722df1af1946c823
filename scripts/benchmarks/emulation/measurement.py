# SPDX-License-Identifier: Apache-2.0
"""Profiles and emulations of short commands, measured: E.1 to E.5 of the Synapse paper, and start-up.

The paper's program is GROMACS, on clusters; here it runs on one node, and commands that every machine has beside it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import probe
from benchmarks.emulation import there
from checkpoint.errors import ProbeError
from probe.emulation.kernels import AUTO, COMPUTING, emulator
from probe.emulation.metrics import cpu_seconds
from probe.emulation.plan import SECONDS, WORK, EmulateOptions, make_plan
from probe.emulation.running import known_rates
from probe.emulation.usage import AMOUNT, LEVEL, Column, Header, ProfiledNode, Usage, save_usage

RATES = (1, 5, 10, 20)
BLOCKS = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
WAYS = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4))
"""Of E.4: threads and ranks."""

_MOVED = 64 << 20
_PART = 0.1
_PACED_SECONDS = 0.3
"""A command has to last as long for its pace to be known."""

_MEMORY = """
for n in range({rounds}):
    held = []
    for m in range(200):
        held.append(bytearray(1 << 20))
    sum(map(sum, held[:20]))
"""

Say = Callable[[str], None]
Command = Callable[[int], list[str]]
"""Of a number of rounds: words."""


def commands(folder: Path) -> dict[str, Command]:
    """Commands of any number of rounds: computing, reading and writing, memory; GROMACS where its input is."""
    data = folder / "data.txt"
    if not data.exists():
        rows = (f"{(n * 2654435761) % (1 << 32):08x} {n % 977}\n" for n in range(400_000))
        data.write_text("".join(rows))
    return {
        "awk": lambda rounds: ["gawk", f"BEGIN {{ for (n = 0; n < {1000 * rounds}; n++) x += sin(n) }}"],
        "gzip": lambda rounds: _repeated(rounds, f"gzip -6 < {data} > {folder}/packed"),
        "sort": lambda rounds: _repeated(rounds, f"LC_ALL=C sort -S 20M {data} > {folder}/sorted"),
        "memory": lambda rounds: [sys.executable, "-c", _MEMORY.format(rounds=rounds)],
        "gromacs": lambda rounds: gromacs(folder, rounds),
    }


def _repeated(rounds: int, line: str) -> list[str]:
    return ["sh", "-c", f"for n in $(seq {rounds}); do {line}; done"]


def lasting(command: Command, seconds: float) -> int:
    """How many rounds of a command take about so many seconds on this machine."""
    rounds = 1
    while (took := plain(command(rounds))[0]) < _PACED_SECONDS:
        rounds *= 4
    return max(1, round(rounds * seconds / took))


def gromacs(folder: Path, rounds: int, threads: int = 1) -> list[str]:
    """Molecular dynamics of ten steps a round, on the input that `prepare_gromacs` put into the folder."""
    words = f"cd {folder} && GMX_MAXBACKUP=-1 exec gmx mdrun -ntmpi 1 -ntomp {threads} -s argon.tpr -deffnm run"
    return ["sh", "-c", f"{words} -nsteps {10 * rounds} > /dev/null 2>&1"]


def prepare_gromacs(folder: Path, data: Path) -> None:
    """Raises OSError where nobody made its input (benchmarks.inputs.make_inputs)."""
    shutil.copy(data / "argon.tpr", folder / "argon.tpr")


def plain(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command, by wait4. Raises OSError where it fails."""
    begun = time.monotonic()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise OSError(f"{command[-1][:200]} failed with status {running.returncode}")
    return time.monotonic() - begun, used.ru_utime + used.ru_stime


def overhead(folder: Path, lengths: Sequence[float], rounds: int, say: Say) -> Iterator[dict[str, Any]]:
    """E.1: GROMACS without a profile and with one at each rate, by turns."""
    for seconds in lengths:
        say(f"bench: E.1, {seconds:g} s")
        command = gromacs(folder, lasting(partial(gromacs, folder), seconds))
        bare: list[tuple[float, float]] = []
        profiled: dict[int, list[tuple[float, float]]] = {rate: [] for rate in RATES}
        for _ in range(rounds):
            bare.append(plain(command))
            for rate, found in profiled.items():
                usage = probe.profile_usage(command, rate=float(rate))
                found.append((usage.seconds, cpu_seconds(usage) or 0.0))
        for rate, found in profiled.items():
            yield {
                "length": seconds, "rate": rate, "pairs": rounds,
                "wall": _middle(found, 0) / _middle(bare, 0) - 1, "cpu": _middle(found, 1) / _middle(bare, 1) - 1,
                "noise": _spread([cpu for _, cpu in bare]), "cpu_spread": _spread([cpu for _, cpu in found]),
            }  # fmt: skip


def _middle(rows: Sequence[tuple[float, float]], place: int) -> float:
    return statistics.median(row[place] for row in rows)


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def emulated(folder: Path, seconds: float, say: Say) -> Iterator[dict[str, Any]]:
    """E.2 on this node: each command profiled, emulated, and its emulation profiled."""
    for name, words in commands(folder).items():
        say(f"bench: E.2, {name}")
        command = words(lasting(words, seconds))
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


def kernels(folder: Path, seconds: float, say: Say) -> Iterator[dict[str, Any]]:
    """E.3: GROMACS by each kernel and by their mix, on the profiled node: run time, and instructions by Valgrind."""
    command = gromacs(folder, lasting(partial(gromacs, folder), seconds))
    usage = probe.profile_usage(command, kernels=True)
    save_usage(usage, folder / "kernels.usage")
    own = instructions(command)
    yield {"kernel": "the program itself", "seconds": usage.seconds, "cpu": cpu_seconds(usage), "instructions": own}
    for name in (*COMPUTING, AUTO):
        say(f"bench: E.3, {name}")
        options = EmulateOptions(kernel=name, folder=folder, threads=1)
        try:
            result = probe.emulate(folder / "kernels.usage", options)
        except ProbeError as error:
            yield {"kernel": name, "failure": str(error)}
            continue
        counted = _emulated_instructions(folder, usage, options)
        used = result.outcome.user + result.outcome.kernel
        yield {"kernel": name, "seconds": result.seconds, "cpu": used, "instructions": counted}


def _emulated_instructions(folder: Path, usage: Usage, options: EmulateOptions) -> int | None:
    """Of a part, times that part, as Valgrind takes long; without those of an emulation that computes nothing."""
    found = []
    for share in (0.0, _PART):
        given = replace(options, scale={"compute": share})
        (folder / "plan").write_text(make_plan(usage, given, known_rates(usage, given)).text(given))
        found.append(instructions(["sh", "-c", f"exec {emulator()} run < {folder / 'plan'} > /dev/null"]))
    return None if found[0] is None or found[1] is None else round((found[1] - found[0]) / _PART)


def instructions(command: Sequence[str]) -> int | None:
    """Instructions in user code, by Valgrind; None where it cannot run the program."""
    with tempfile.TemporaryDirectory() as place:
        words = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--trace-children=yes"]
        words.append(f"--cachegrind-out-file={place}/%p")
        done = subprocess.run([*words, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        counts = [_counted(path) for path in Path(place).iterdir()]
    return sum(counts) if counts and not done.returncode else None


def _counted(path: Path) -> int:
    """The last line of what cachegrind writes is `summary: INSTRUCTIONS`."""
    return int(path.read_text().rstrip().rpartition("\n")[2].split()[1])


def parallel(folder: Path, seconds: float, say: Say) -> Iterator[dict[str, Any]]:
    """E.4: the profile of one thread of GROMACS by threads and by ranks, beside GROMACS by threads."""
    rounds = lasting(partial(gromacs, folder), seconds)
    save_usage(probe.profile_usage(gromacs(folder, rounds), kernels=True), folder / "one.usage")
    # What is computed alone, as in the paper: ranks would do everything else once each.
    scale = dict.fromkeys(("memory", "read", "write"), 0.0)
    for count, ranks in WAYS:
        say(f"bench: E.4, {ranks} ranks of {count} threads")
        options = EmulateOptions(threads=count, ranks=ranks, folder=folder, scale=scale)
        result = probe.emulate(folder / "one.usage", options)
        program = plain(gromacs(folder, rounds, count))[0] if ranks == 1 else None
        yield {"threads": count, "ranks": ranks, "seconds": result.seconds, "program": program}


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


def experiment(name: str, here: Path, quick: bool, say: Say) -> Iterator[dict[str, Any]]:
    """The rows of one of report.EXPERIMENTS. `here`: a folder on the disk, with the inputs in `data`."""
    if name == "there":
        yield from there.measure(here / "there", here / "data", say)
        return
    lengths, rounds = ((1.0,), 3) if quick else ((0.3, 0.6, 1.2, 1.8, 2.4), 10)
    with tempfile.TemporaryDirectory(dir=here) as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        folder = Path(disk)
        prepare_gromacs(folder, here / "data")
        if name == "E.1":
            yield from overhead(folder, lengths, rounds, say)
        elif name == "E.2":
            yield from emulated(folder, 2.0 if quick else 8.0, say)
        elif name == "E.3":
            yield from kernels(folder, 0.2 if quick else 1.0, say)
        elif name == "E.4":
            yield from parallel(folder, 2.0 if quick else 8.0, say)
        elif name == "E.5":
            yield from blocks({"disk": folder, "tmpfs": Path(memory)})
        else:
            yield start_up(folder, 20)
