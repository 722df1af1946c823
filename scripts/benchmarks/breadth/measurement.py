# SPDX-License-Identifier: Apache-2.0
"""Try packaged programs as a new user would, by turns with plain runs: a row each."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.breadth.bounded import Bounds, Ended, Tasks, run_program
from benchmarks.breadth.inputs import Place, place
from benchmarks.breadth.programs import Program
from benchmarks.breadth.recorded import Row
from benchmarks.disturbance import Load, watched
from checkpoint.binary.isa import DEFAULT_ISA
from checkpoint.process.program import Program as Started
from checkpoint.process.program import Streams
from probe.node.measuring import away_from, measuring_cpu

ROOT = Path(__file__).resolve().parents[3]

PREDICTED, REFUSED, FAILED, UNUSABLE = "predicted", "refused", "failed", "unusable"
"""What became of a program. Failed: neither a prediction nor a refusal in words, or none in time. Unusable: the program
itself did not run as the table says, which is a fault of the table or of this machine."""

LATER_RUNS = 2
"""Plain runs behind the prediction; one is before the build, one behind it."""

DISK_BYTES = 20 << 30
NATIVE_SECONDS = 120.0
_PROBE = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from probe.cli.main import main; main()"
_PROBE_PATIENCE = (240.0, 60.0)
"""Seconds that a command of probe may take: so many, and so many times the native time."""

_MESSAGE = 600
_LAST_LINES = 4000


@dataclass(frozen=True)
class Tool:
    """The command to try, and the commit it is of; tests have others, and options for their short programs."""

    argv: tuple[str, ...] = (sys.executable, "-c", _PROBE)
    commit: str = ""
    patience: tuple[float, float] = _PROBE_PATIENCE
    options: tuple[str, ...] = ()


def measure(program: Program, base: Path, made: Path, tool: Tool, say: Callable[[str], None]) -> Row:
    """The row of one program. `base` is its folder, removed afterwards; `made` keeps inputs for the next time."""
    say(f"bench: {program.name}: {program.command}")
    row = _key(program, tool.commit)
    row |= {"kind": program.kind, "date": time.strftime("%Y-%m-%d"), "aside": program.aside, "machine": _processor()}
    row["expected"] = program.refusal.why if program.refusal else ""
    begun = time.monotonic()
    try:
        with place(program, base, made) as found:
            row |= _tried(found, tool)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        row |= {"outcome": UNUSABLE, "message": f"{type(error).__name__}: {error}"[:_MESSAGE]}
    row["bench_seconds"] = round(time.monotonic() - begun, 1)
    return row


def _key(program: Program, commit: str) -> Row:
    return {
        "program": program.name,
        "command": program.command,
        "package": f"{program.package} {version(program.package)}",
        "commit": commit,
    }


def key(program: Program, commit: str) -> tuple[str, ...]:
    """What a row is recorded by."""
    return tuple(_key(program, commit).values())


def version(package: str) -> str:
    """The installed version of a distribution package; empty where it is not installed."""
    query = ["dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", package]
    done = subprocess.run(query, capture_output=True, text=True)
    status, _, number = done.stdout.partition(" ")
    return number if status == "installed" else ""


def tool_commit() -> str:
    """The last commit of what is tried: probe, checkpoint, reducer; with a mark where files differ from it."""
    parts = ["--", "probe", "checkpoint", "reducer"]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments, *parts], capture_output=True, text=True)
        return done.stdout.strip()

    return git("log", "-1", "--format=%h") + "+" * bool(git("status", "--porcelain"))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, 'unknown')}, {len(os.sched_getaffinity(0))} processors"


def _tried(found: Place, tool: Tool) -> Row:
    native = _native(found)
    row: Row = {"native": native}
    expected = found.program.status
    if native["stopped"] or native["status"] != expected:
        said = f"exit status {native['status']} instead of {expected}: {native.pop('said')}"
        return {**row, "outcome": UNUSABLE, "message": f"stopped: {native['stopped']}" if native["stopped"] else said}
    native.pop("said")
    with watched() as load:
        # Only the build tells how many threads share the work.
        before = {many: _plain(found, many=many) for many in (False, True) if not many or native["threads"] > 1}
        between: list[Ended] = []
        row |= _predicted(
            found, tool, native["wall"], lambda many: between.append(_plain(found, many=many, again=False))
        )
        if row["outcome"] == PREDICTED:
            many = row["run"]["threads"] > 1
            # A look may have missed threads that work for moments.
            first = [before[many]] if many in before else []
            row |= compared(row, [*first, *between, *(_plain(found, many=many) for _ in range(LATER_RUNS))])
    row["load"] = _shares(load)
    return row


def _shares(load: Load) -> dict[str, float]:
    """Processors that others used, and that the hypervisor kept, in the mean of the whole measurement."""
    return {k: round(v / load.seconds, 3) for k, v in (("others", load.others), ("stolen", load.stolen))}


def _native(found: Place) -> Row:
    """The command as typed, on whatever processors there are: its time, and who worked in it."""
    tasks = Tasks()
    ended, said = _command(found, found.program.argv, found.environment, NATIVE_SECONDS, look=tasks.look)
    return {
        "wall": round(ended.wall, 3),
        "cpu": round(ended.cpu, 3),
        "status": ended.status,
        "stopped": ended.stopped,
        "left": ended.left,
        "threads": tasks.threads,
        "processes": tasks.processes,
        "largest": round(min(1.0, tasks.largest / ended.cpu), 3) if ended.cpu else 0.0,
        "said": said[-_MESSAGE:],
    }


def _plain(found: Place, *, many: bool, again: bool = True) -> Ended:
    """A run on the processor that probes measure on, in the environment that their runs have; on all processors where
    `many` threads share the work. In the folder as it is unless `again`."""
    cpu = None if many else measuring_cpu()
    masked = Started((), "", "", isa=DEFAULT_ISA, env=found.environment).environment()
    with away_from(cpu):
        ended, said = _command(found, found.program.argv, masked, 2 * NATIVE_SECONDS, cpu=cpu, again=again)
    if ended.stopped or ended.status != found.program.status:
        raise ValueError(f"a plain run ended with {ended.status} {ended.stopped}: {said[-_MESSAGE:]}")
    return ended


def _command(
    found: Place, argv: tuple[str, ...], environment: Mapping[str, str], seconds: float, *, cpu: int | None = None,
    look: Callable[[int], None] | None = None, stdin: str | None = None, again: bool = True,
) -> tuple[Ended, str]:  # fmt: skip
    """Run a command in the fresh folder, or in the folder as it is unless `again`; how it ended, and its messages."""
    if again:
        found.fresh()
    streams = Streams(found.base / "stdout", found.base / "stderr")
    for stream in (streams.stdout, streams.stderr):
        stream.unlink(missing_ok=True)
    ended = run_program(
        argv, folder=found.folder, stdin=found.program.stdin if stdin is None else stdin, environment=environment,
        streams=streams, bounds=Bounds(seconds, DISK_BYTES), watched=found.base, cpu=cpu, look=look,
    )  # fmt: skip
    said = streams.stderr.read_bytes()[-_LAST_LINES:].decode(errors="replace").strip()
    return ended, said


def _predicted(found: Place, tool: Tool, native: float, between: Callable[[bool], None]) -> Row:
    """What `probe build` and `probe run` make of the command; `between` is called between them, with whether several
    threads share the work."""
    target = found.base / "it.probe"
    stdin = [] if found.program.stdin == "/dev/null" else ["--stdin", found.program.stdin]
    seconds = 0.0
    out: list[Any] = []
    for stage, arguments in (
        ("build", ["build", "-q", "--json", *tool.options, "-o", str(target), *stdin, "--", *found.program.argv]),
        ("run", ["run", "-q", "--json", str(target)]),
    ):
        bound = tool.patience[0] + tool.patience[1] * native
        ended, said = _command(
            found, (*tool.argv, *arguments), found.environment, bound, stdin="/dev/null", again=stage == "build"
        )  # fmt: skip
        seconds += ended.wall
        if ended.status or ended.stopped or ended.left:
            return {**judged(found.program, ended, said, found.base), "stage": stage, **late(seconds, native)}
        out.append(json.loads((found.base / "stdout").read_text()))
        if stage == "build":
            between(out[0]["threads"] > 1)
    return {"outcome": PREDICTED, "build": out[0], "run": out[1], "seconds": round(seconds, 1)}


def late(seconds: float, native: float) -> Row:
    """How late a refusal came: seconds, and over the native time."""
    return {"late": round(seconds, 1), "share": round(seconds / native, 2) if native else None}


def judged(program: Program, ended: Ended, said: str, base: Path) -> Row:
    """A command of probe that made no prediction: refused in words or failed; rightly where that was expected."""
    message = without_paths(said, base)
    row: Row = {"exit": ended.status, "message": message[-_MESSAGE:], "left": ended.left}
    if ended.stopped:
        return {**row, "outcome": FAILED, "message": f"ended at the bound of {ended.stopped}: {message[-_MESSAGE:]}"}
    if ended.status <= 1 or "Traceback" in said or not message or ended.left:
        return {**row, "outcome": FAILED}
    rightly = program.refusal is not None and re.search(program.refusal.says, message, re.IGNORECASE) is not None
    return {**row, "outcome": REFUSED, "rightly": rightly}


def without_paths(said: str, base: Path) -> str:
    """A message without the folders of this machine."""
    said = re.sub(r"\s+", " ", said)
    return said.replace(f"{base}/run/", "").replace(str(base), "FOLDER").replace(f"{ROOT}/", "")


def compared(row: Row, runs: list[Ended]) -> Row:
    """Of a prediction: its errors against the mean of plain runs by the probe's clock, and whether its interval held.

    Takes the documents of `probe build --json` and `probe run --json` out of the row."""
    build, run = row.pop("build"), row.pop("run")
    full = [ended.cpu if build["clock"] == "cpu" else ended.wall for ended in runs]
    truth = statistics.mean(full)
    said = run["prediction"]
    return {
        "clock": build["clock"],
        "full": [round(seconds, 4) for seconds in full],
        "reference": round(build["et_ref_seconds"], 4),
        "predicted": round(said["seconds"], 4),
        "low": round(said["low"], 4),
        "high": round(said["high"], 4),
        "half_width": round((said["high"] - said["low"]) / 2 / said["seconds"], 5),
        "held": said["low"] <= truth <= said["high"],
        "errors": {n: round(v / truth - 1, 5) for n, v in run["estimators"].items() if v is not None},
        "phases": len(build["phases"]),
        "tracing": build["tracing_overhead"],
        "warnings": [*build["warnings"], *run["warnings"]],
    }
