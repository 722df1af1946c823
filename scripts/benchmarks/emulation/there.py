# SPDX-License-Identifier: Apache-2.0
"""Emulations on the emulated node (scripts/testnode), by its clock of instructions, against the programs there.

Programs of the accuracy suite, with inputs for a second or two. A program's profile is made here. Each kernel's rate is
measured there: iterations over that rate are the emulation's CPU time, as the emulator has nothing else to do. One
emulation of each program, by the mix, is made there for real as well.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import probe
from benchmarks.arguments import CLOCK
from benchmarks.emulated.measurement import ADDRESS, NODE, on_node, options
from benchmarks.programs import SHORT, Benchmark
from checkpoint.errors import ProbeError
from probe.emulation.kernels import AUTO, BLAS, COMPUTING, INSTEAD, MOVING, judged, program_for
from probe.emulation.plan import MOVED, EmulateOptions, make_plan
from probe.emulation.running import known_rates
from probe.emulation.usage import Usage, load_usage, save_usage

Say = Callable[[str], None]

KERNELS = (*(name for name in COMPUTING if name not in (BLAS, "syscalls")), AUTO)
"""What is compared: the node has no OpenBLAS."""

SCALE = 0.05
"""Of the emulations made for real: time there goes slowly, and is proportional."""

PROGRAMS = (
    *(one for one in SHORT if one.name in ("gzip-short", "perl-short", "clustalw-short", "hmmsearch-short")),
    Benchmark("bwa-short", ("bwa", "aln", "-t", "1", "genome.fa", "few-reads.fq"), "alignment of short reads"),
    Benchmark("tachyon-short", ("/bin/sh", "-c", "exec tachyon balls.dat -res 160 120 -numthreads 1 -o /dev/null "
                                ">/dev/null"), "rendering: ray tracing"),
    Benchmark("gnugo-short", ("/bin/sh", "-c", "exec /usr/games/gnugo --benchmark 2 --seed 1 --level 8 >/dev/null"),
              "game tree search: Go"),
    Benchmark("lame-short", ("lame", "--quiet", "-q", "0", "short.wav", "/dev/null"), "sound coding, in a library"),
    *(one for one in SHORT if one.name in ("bzip2-short", "bc-short")),
)  # fmt: skip


def make_inputs(data: Path) -> None:
    """Beginnings of the accuracy suite's inputs."""
    (data / "few-reads.fq").write_text("".join((data / "reads.fq").read_text().splitlines(keepends=True)[:4000]))
    (data / "short.wav").write_bytes((data / "sound.wav").read_bytes()[:400_000])


def measure(folder: Path, data: Path, say: Say) -> Iterator[dict[str, Any]]:
    """A row for each program. What is kept of earlier rows in `folder` (profiles, times there) is not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    make_inputs(data)
    profiles = {}
    for one in PROGRAMS:
        try:
            profiles[one.name] = _profile(one, folder, data, say)
        except (ProbeError, OSError) as error:
            yield {"name": one.name, "failure": str(error)}
    subprocess.run([str(NODE), "start"], check=True, env={**os.environ, "CLOCK": CLOCK, "OWNER": str(os.getpid())})
    try:
        rates = _rates(say)
        for one in PROGRAMS:
            if one.name in profiles:
                say(f"bench: {one.name}, on the node")
                try:
                    yield _compared(one, profiles[one.name], folder, data, rates)
                except (ProbeError, ValueError, subprocess.SubprocessError) as error:
                    yield {"name": one.name, "failure": str(error)[-200:]}
    finally:
        subprocess.run([str(NODE), "stop"], check=True)


def _profile(one: Benchmark, folder: Path, data: Path, say: Say) -> Usage:
    path = folder / f"{one.name}.usage"
    if not path.exists():
        say(f"bench: {one.name}, profiled here")
        words = ["env", *_environment(one), *one.argv]
        with _inside(data), open(os.devnull, "wb") as nowhere:
            save_usage(probe.profile_usage(words, stdout=nowhere.fileno(), kernels=True), path)
    return load_usage(path)


def _environment(one: Benchmark) -> list[str]:
    return [f"{name}={value}" for name, value in one.environment.items()]


def _rates(say: Say) -> Mapping[str, float]:
    """Iterations per CPU second of each kernel there, by the program that is sent to it."""
    say("bench: kernels, on the node")
    on_node("cat > emulator && chmod 755 emulator", program_for("x86_64"))
    found = {}
    for name in (*(name for name in COMPUTING if name != BLAS), *MOVING):
        rounds = [line.split() for line in on_node(f"./emulator calibrate {name} .").decode().splitlines()]
        found[name] = judged(name, [(int(r[1]), float(r[2])) for r in rounds if r[0] == "round"]).rate
    return found


def _compared(one: Benchmark, usage: Usage, folder: Path, data: Path, rates: Mapping[str, float]) -> dict[str, Any]:
    there = _there(one, folder, data)
    errors = {}
    for kernel in KERNELS:
        given = EmulateOptions(kernel=kernel, threads=1)
        errors[kernel] = predicted(usage, given, rates) / there - 1
    used = [_emulated(folder / f"{one.name}.usage", share) for share in (0.0, SCALE)]
    return {"name": one.name, "there": there, "errors": errors, "real": (used[1] - used[0]) / SCALE / there - 1}


def _emulated(profile: Path, share: float) -> float:
    """CPU seconds there of an emulation of a part. Its memory and its own start are those of the whole."""
    chosen = EmulateOptions(kernel=AUTO, threads=1, scale=dict.fromkeys(("compute", "read", "write"), share))
    (found,) = probe.emulate_on(profile, [ADDRESS], chosen, ssh=options())
    if found.error is not None:
        raise found.error
    assert found.result is not None
    return found.result.outcome.user + found.result.outcome.kernel


def predicted(usage: Usage, given: EmulateOptions, rates: Mapping[str, float]) -> float:
    """CPU seconds of an emulation on a node with these rates: of computing, and of moving bytes."""
    plan = make_plan(usage, given, known_rates(usage, given), blas=False)
    work = {**{name: float(made.sum()) for name, made in plan.computed.items()}}
    work["syscalls"] = work.get("syscalls", 0.0) + float(plan.system_calls.sum())
    growth = np.maximum(0.0, np.diff(plan.resident, prepend=0.0)).sum()
    for name, moved in (("read", plan.read.sum()), ("write", plan.written.sum()), ("touch", growth)):
        work[name] = work.get(name, 0.0) + float(moved) / MOVED
    return sum(iterations / rates[INSTEAD if name == BLAS else name] for name, iterations in work.items())


def _there(one: Benchmark, folder: Path, data: Path) -> float:
    """CPU seconds of the program there; measured once, as equal work takes equal time by its clock."""
    kept = folder / f"{one.name}.there"
    if kept.exists():
        return float(kept.read_text())
    words = {word.rpartition("=")[2] for argument in one.argv[1:] for word in argument.split()}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as tar:
        for path in sorted({path for word in words if "/" not in word for path in data.glob(f"{word}*")}):
            tar.add(path, path.name)
    on_node("rm -rf full && mkdir full && tar -xzf - -C full", stream.getvalue())
    code = (
        "import resource,subprocess;"
        f"subprocess.run({list(one.argv)!r},stdin=subprocess.DEVNULL,stdout=subprocess.DEVNULL,"
        "stderr=subprocess.DEVNULL,check=True);"
        "u=resource.getrusage(resource.RUSAGE_CHILDREN);print(u.ru_utime+u.ru_stime)"
    )
    said = on_node(f"cd full && {' '.join(_environment(one))} python3 -c {shlex.quote(code)}")
    kept.write_text(said.decode().strip())
    return float(said)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Python 3.11 has contextlib.chdir, Python 3.10 has not."""
    was = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(was)
