# SPDX-License-Identifier: Apache-2.0
"""Emulate a resource profile on this node: the emulator is started, followed, and compared with the profile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.errors import NodeUnreachable, ProbeError, StorageError, ToolMissing
from probe.emulation.kernels import (
    AUTO,
    BLAS,
    COMPUTING,
    MOVING,
    NO_BLAS,
    USER,
    all_rates,
    calibrate,
    emulator,
    forget,
    has_blas,
)  # fmt: skip
from probe.emulation.load import beside, disk_of, memory_of
from probe.emulation.metrics import cpu_seconds, key_of, waiting
from probe.emulation.plan import WORK, EmulateOptions, Plan, kernel_seconds, make_plan
from probe.emulation.room import check_room
from probe.emulation.usage import Usage, load_usage
from probe.formats.result import EMULATION_VERSION, METHOD
from probe.node.facts import this_node
from probe.node.machine_lock import measuring_alone
from probe.progress import Display, Report, Silent

_MUCH_ASLEEP = 0.05
_WAITING = "waiting for another measurement on this node: {}"


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
        read, written = (float(moved.sum()) * plan.ranks for moved in (plan.read, plan.written))
        rows: list[tuple[str, str, float | None, float, float]] = [
            ("seconds", "s", usage.seconds, usage.seconds, outcome.wall),
            ("cpu_seconds", "s", cpu_seconds(usage), float(plan.cpu[-1]), outcome.user + outcome.kernel),
            ("read", "B", usage.total("read"), read, read),
            ("written", "B", usage.total("written"), written, written),
            ("resident", "B", usage.total("resident"), float(plan.most_resident), outcome.peak),
        ]
        carried = (
            ("net_sent", plan.sent, self.options.send_to),
            ("net_received", plan.received, self.options.receive_from),
        )
        rows += [
            (name, "B", usage.total(name), bytes_of_all, bytes_of_all)
            for name, moved, endpoint in carried
            for bytes_of_all in [float(moved.sum()) * plan.ranks]
            if endpoint is not None
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
            "ranks": self.plan.ranks,
            "efficiency": options.efficiency,
            "load": [{"name": name, "value": value} for name, value in sorted(options.load.items())],
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
    check_kernel(options)
    program = emulator(options.own_kernel)
    try:
        rates = known_rates(usage, options, program)
        blas = BLAS not in kernel_seconds(usage, options) or has_blas(program)
        plan = make_plan(usage, options, rates, blas=blas)
        room = plan.most_resident + memory_of(options.load), plan.all_written + disk_of(options.load)
        check_room(*room, options.folder)
        shown = display or Silent()
        with contextlib.ExitStack() as held:
            held.enter_context(
                measuring_alone(os.sched_getaffinity(0), waiting=lambda holder: shown.note(_WAITING.format(holder)))
            )
            held.enter_context(beside(options.load, options.folder))
            outcome = _run(program, plan, options, held.enter_context(shown.stage("emulate")))
    finally:
        forget(program, options.own_kernel)
    return EmulationResult(str(profile), usage, options, plan, outcome, this_node())


def check_kernel(options: EmulateOptions) -> None:
    """Raise ProbeError for a kernel that there is not."""
    if options.own_kernel is None and options.kernel not in (*COMPUTING, AUTO):
        raise ProbeError(f"no kernel {options.kernel!r}; there are {', '.join(COMPUTING)}, {AUTO}, and --own FILE")


def known_rates(usage: Usage, options: EmulateOptions, program: Path | None = None) -> Mapping[str, float]:
    """Iterations per CPU second on the profiled node; measured now, where this is that node and the profile has none.

    `program`: the emulator with the options' kernel, if it is there already. Raises ProbeError for a rate that nobody
    knows, and what `calibrate` does.
    """
    if options.equal != WORK:
        return {}
    rates = dict(usage.header.kernels)
    wanted = {*kernel_seconds(usage, options), "syscalls", *MOVING}
    missing = wanted - rates.keys()
    if not missing:
        return rates
    here, there = this_node(), usage.header.node
    if (here["name"], here["cpu"]) != (there.name, there.cpu):
        raise ProbeError(
            f"the profile has no rate of {', '.join(sorted(missing))} on {there.name}, and this is another node; "
            "profile the command again, or emulate its CPU seconds with --equal seconds"
        )
    own = _own_rate(options, program) if USER in missing else {}
    here_known = {**all_rates(), **rates, **own}
    if BLAS in wanted - here_known.keys():
        raise ToolMissing(NO_BLAS)
    return here_known


def _own_rate(options: EmulateOptions, program: Path | None) -> dict[str, float]:
    made = program or emulator(options.own_kernel)
    try:
        return {one.kernel: one.rate for one in calibrate([USER], made)}
    finally:
        if program is None:
            forget(made, options.own_kernel)


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
    start, said = 0.0, Said(len(plan.cpu))
    for line in running.stdout:
        said.take(line)
        if said.begun and not start:
            start = time.monotonic() - begun
        report(said.share)
    errors = running.stderr.read().strip()
    return said.outcome(running.wait(), errors, start)


class Said:
    """What an emulator says of `samples` samples, line by line."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._ends: list[tuple[float, float]] = []
        self._done: list[float] = []
        self.begun = False
        self.share = 0.0
        """Of the samples that are done."""

    def take(self, line: str) -> None:
        """Raises ValueError for a line that no emulator says."""
        word, *texts = line.split()
        values = [float(text) for text in texts]
        if len(values) != _WORDS.get(word) or not all(0 <= value < _MOST for value in values):
            raise ValueError(f"it says {line.strip()[:80]!r}")
        if word == "begin":
            self.begun = True
        elif word == "at":
            self.share = min(1.0, values[0] / self._samples)
        elif word == "sample":
            if len(self._ends) == self._samples or (self._ends and values[0] < self._ends[-1][0]):
                raise ValueError("it reports more samples than it was given, or goes back in time")
            self._ends.append((values[0], values[1]))
        else:
            self._done = values

    def outcome(self, status: int, errors: str, start: float) -> Outcome:
        """Raises StorageError where the emulator has not come to its end. `start`: seconds to its first sample."""
        if status or not self._done or len(self._ends) != self._samples:
            reason = _reason(errors, status)
            if reason.startswith(_NETWORK):
                raise NodeUnreachable(f"the emulation's network: {reason}; see what listens at the endpoints")
            raise StorageError(f"the emulation ended early: {reason}")
        wall, user, kernel, peak = self._done
        return Outcome(wall, user, kernel, peak * 1024, start, tuple(self._ends))


_WORDS = {"begin": 0, "at": 1, "sample": 2, "done": 4}
"""What an emulator says, and how many numbers stand behind each word."""

_MOST = 1e18

_NETWORK = ("connecting", "sending", "receiving")
"""How the emulator's words begin where an endpoint does not do its part."""


def _reason(said: str, status: int) -> str:
    """What the emulator says of its end: `error ERRNO WHAT`, of several the first."""
    for line in said.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3 and words[0] == "error" and words[1].isdigit():
            return f"{words[2]}: {os.strerror(int(words[1]))}"
    return said[-300:] or f"status {status}"
