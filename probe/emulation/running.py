# SPDX-License-Identifier: Apache-2.0
"""Emulate a resource profile on this node: the emulator is started, followed, and compared with the profile."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.errors import ProbeError, StorageError
from probe.emulation.kernels import COMPUTING, MOVING, USER, all_rates, calibrate, emulator, forget
from probe.emulation.metrics import cpu_seconds, key_of, waiting
from probe.emulation.plan import WORK, EmulateOptions, Plan, check_room, make_plan
from probe.emulation.usage import Usage, load_usage
from probe.node.facts import this_node
from probe.progress import Display, Report, Silent

EMULATION_VERSION = 1
METHOD = "emulation"
_MUCH_ASLEEP = 0.05


@dataclass(frozen=True)
class Outcome:
    """What the emulator says it did. Seconds and bytes; `start`: until its first sample began."""

    wall: float
    user: float
    kernel: float
    peak: float
    start: float
    samples: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class EmulationResult:
    """One emulation on one node beside its profile. There is no interval: none has been measured for this method."""

    profile: str
    usage: Usage
    options: EmulateOptions
    plan: Plan
    outcome: Outcome
    node: dict[str, Any]

    @property
    def seconds(self) -> float:
        return self.outcome.wall

    @property
    def totals(self) -> list[dict[str, Any]]:
        """Profiled, asked for after scaling, emulated. Bytes are those of calls that were all made."""
        plan, outcome, usage = self.plan, self.outcome, self.usage
        read, written = float(plan.read.sum()), float(plan.written.sum())
        rows: list[tuple[str, str, float | None, float, float]] = [
            ("seconds", "s", usage.seconds, usage.seconds, outcome.wall),
            ("cpu_seconds", "s", cpu_seconds(usage), float(plan.cpu[-1]), outcome.user + outcome.kernel),
            ("read", "B", usage.total("read"), read, read),
            ("written", "B", usage.total("written"), written, written),
            ("resident", "B", usage.total("resident"), float(plan.resident.max()), outcome.peak),
        ]
        return [
            {"name": name, "unit": unit, "profiled": profiled, "wanted": wanted, "emulated": done}
            for name, unit, profiled, wanted, done in rows
        ]

    @property
    def warnings(self) -> tuple[str, ...]:
        asleep = waiting(self.usage) or 0.0
        said = list(self.plan.warnings)
        if not self.options.keep_waits and asleep > _MUCH_ASLEEP:
            said.append(
                f"{asleep:.0%} of the profiled time the command waited, for devices or others; the emulation leaves "
                "such time out, unless --keep-waits is given"
            )
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        """The published form (docs/json.md)."""
        command, tags = key_of(self.usage)
        options = self.options
        return {
            "format_version": EMULATION_VERSION,
            "method": METHOD,
            "profile": self.profile,
            "program": list(command),
            "tags": [{"name": name, "value": value} for name, value in tags],
            "node": self.node,
            "profiled_on": self.usage.header.node.name,
            "prediction": {"seconds": self.seconds, "low": None, "high": None},
            "equal": options.equal,
            "kernel": str(options.own_kernel or options.kernel),
            "threads": self.plan.threads,
            "samples": len(self.plan.cpu),
            "start_seconds": self.outcome.start,
            "totals": self.totals,
            "warnings": list(self.warnings),
        }


def emulate(
    profile: Path | str, options: EmulateOptions | None = None, *, display: Display | None = None
) -> EmulationResult:
    """Use here what the profile says was used there, and time it.

    Raises NodeUnfit where this node has not the memory or disk, StorageError where files cannot be made, ToolMissing
    without a compiler, ProbeFileDamaged for what is no profile, ProbeError for options that nothing can follow.
    """
    options = options or EmulateOptions()
    usage = load_usage(Path(profile))
    if options.own_kernel is None and options.kernel not in COMPUTING:
        raise ProbeError(f"no kernel {options.kernel!r}; there are {', '.join(COMPUTING)}, and files in C (.c)")
    program = emulator(options.own_kernel)
    try:
        plan = make_plan(usage, options, _rates(usage, options, program))
        check_room(plan, options.folder)
        with (display or Silent()).stage("emulate") as report:
            outcome = _run(program, plan, options, report)
    finally:
        forget(program, options.own_kernel)
    return EmulationResult(str(profile), usage, options, plan, outcome, this_node())


def _rates(usage: Usage, options: EmulateOptions, program: Path) -> Mapping[str, float]:
    """Iterations per CPU second on the profiled node; measured now, where this is that node and it has none."""
    if options.equal != WORK:
        return {}
    rates = dict(usage.header.kernels)
    wanted = {USER if options.own_kernel else options.kernel, "syscalls", *MOVING}
    missing = wanted - rates.keys()
    if not missing:
        return rates
    here, there = this_node(), usage.header.node
    if (here["name"], here["cpu"]) != (there.name, there.cpu):
        raise ProbeError(
            f"the profile has no rate of {', '.join(sorted(missing))} on {there.name}, and this is another node; "
            "profile the command again, or emulate its CPU seconds with --equal seconds"
        )
    own = calibrate([USER], program) if USER in missing else []
    return {**all_rates(), **rates, **{one.kernel: one.rate for one in own}}


def _run(program: Path, plan: Plan, options: EmulateOptions, report: Report) -> Outcome:
    begun = time.monotonic()
    running = subprocess.Popen(
        [str(program), "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        return _followed(running, plan, options, report, begun)
    except BaseException:
        running.kill()
        raise
    finally:
        for stream in (running.stdin, running.stdout, running.stderr):
            if stream is not None:
                stream.close()
        running.wait()


def _followed(
    running: subprocess.Popen[str], plan: Plan, options: EmulateOptions, report: Report, begun: float
) -> Outcome:
    assert running.stdin is not None and running.stdout is not None and running.stderr is not None
    try:
        running.stdin.write(plan.text(options))
        running.stdin.close()
    except BrokenPipeError:
        pass
    start, done = 0.0, []
    samples = []
    for line in running.stdout:
        word, *values = line.split()
        if word == "begin":
            start = time.monotonic() - begun
        elif word == "at":
            report(int(values[0]) / len(plan.cpu))
        elif word == "sample":
            samples.append((float(values[0]), float(values[1])))
        elif word == "done":
            done = [float(value) for value in values]
    said = running.stderr.read().strip()
    if running.wait() or len(done) != 4:
        raise StorageError(f"the emulation ended early: {_reason(said, running.returncode)}")
    wall, user, kernel, peak = done
    return Outcome(wall, user, kernel, peak * 1024, start, tuple(samples))


def _reason(said: str, status: int) -> str:
    """What the emulator says of its end: `error ERRNO WHAT`."""
    words = said.split(" ", 2)
    if len(words) == 3 and words[0] == "error" and words[1].isdigit():
        return f"{words[2]}: {os.strerror(int(words[1]))}"
    return said[-300:] or f"status {status}"
