# SPDX-License-Identifier: Apache-2.0
"""Find the process that does the work, where the command line starts a wrapper: a shell script, a launcher."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ProgramFailed, ProgramUnsupported
from checkpoint.process.children import shortened
from checkpoint.process.exit_status import exit_status
from checkpoint.process.program import Program, Streams, Worker
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.wrapper import Execution, Survey, await_wrapper, survey
from probe.tracers.lives import JUDGED_SECONDS, MOST_OUTSIDE, worked_by

SHELLS = ("sh", "bash", "dash", "ash", "busybox", "ksh", "mksh", "zsh", "fish", "csh", "tcsh", "make")

CLEAR = 0.5
"""Share of the CPU time from which on a process is the one that does the work."""

LISTED = 0.05
"""Share from which on a process can be chosen by its number."""

_MANY = 100
_SHORT = 0.1
"""So many programs, none of which has this share: workers too short for a probe each."""

_TOGETHER = 0.2
"""Share of two processes each, from which on they are two workers."""

_FEW_SECONDS = 0.2
"""CPU time of a run in which starts and ends of processes weigh more than what they do."""

_LONG_ENOUGH = 2.0
_MOST_LISTED = 6


@dataclass(frozen=True)
class WorkerChoice:
    """What the user said: the program that the worker executes, or its number in the list of a refusal, from 1."""

    program: str | None = None
    number: int | None = None

    @property
    def given(self) -> bool:
        return self.program is not None or self.number is not None


def is_wrapper(program: Program) -> bool:
    """Whether the command line starts a shell, itself or through the first line of a script."""
    return Path(_interpreter(program.executable)).name in SHELLS


def _interpreter(executable: str) -> str:
    with open(executable, "rb") as file:
        head = file.read(256)
    if not head.startswith(b"#!"):
        return os.path.realpath(executable) if Path(executable).name not in SHELLS else executable
    words = [word.decode(errors="replace") for word in head[2:].split(b"\n")[0].split()]
    if len(words) > 1 and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word] or words
    return words[0] if words else executable


def find_worker(program: Program, streams: Streams, choice: WorkerChoice, *, cpu: int | None = None) -> Worker | None:
    """Run `program` once, nothing of ours inside, and choose: None where the command line's own process does the work.

    Raises ProgramUnsupported where the choice is not clear, WorkedByChildren where it is the command line's own process
    and copies of it do the work, ProgramFailed.
    """
    name = program.argv[0]
    seen = survey(program, streams, cpu=cpu, judge=lambda so_far: _judge_early(name, so_far, choice))
    exit_status(program, seen.status, streams)
    if seen.left:
        raise ProgramUnsupported(
            f"{name}: ended, and processes that it started go on ({', '.join(seen.left[:3])}): what they take "
            "cannot be told; keep it in the foreground (an option of its own)"
        )
    _refuse_many(name, seen, choice)
    chosen = _chosen(name, seen, choice)
    _refuse_together(name, chosen, seen)
    _refuse_copies(name, chosen, seen, choice)
    return None if chosen is seen.executions[0] else chosen.worker


def _judge_early(name: str, seen: Survey, choice: WorkerChoice) -> None:
    if time.monotonic() - seen.began < JUDGED_SECONDS or not seen.executions:
        return
    _refuse_many(name, seen, choice)
    _refuse_copies(name, max(seen.executions, key=Execution.cpu), seen, choice)
    if not choice.given:
        running = [e for e in seen.executions if e.end() is None and time.monotonic() - e.began > _LONG_ENOUGH]
        if running:
            _refuse_together(name, max(running, key=Execution.cpu), seen)


def _shares(seen: Survey) -> list[tuple[Execution, float]]:
    whole = max(sum(e.cpu() for e in seen.executions), 1e-9)
    return [(e, e.cpu() / whole) for e in seen.executions]


def _refuse_many(name: str, seen: Survey, choice: WorkerChoice) -> None:
    shares = _shares(seen)
    largest = max(share for _, share in shares)
    if len(shares) >= _MANY and largest < _SHORT and not choice.given:
        raise ProgramUnsupported(
            f"{name}: executes {len(shares)} programs, none of which has more than {largest:.0%} of the CPU time "
            f"(such as {_said(max(shares, key=lambda one: one[1])[0])}): each is too short for a probe"
        )


def _refuse_copies(name: str, chosen: Execution, seen: Survey, choice: WorkerChoice) -> None:
    """Processes that execute nothing new are none to choose from, and no phase shows them."""
    whole = seen.around.cpu() - seen.executions[0].cpu_before
    share = 1.0 - sum(e.cpu() for e in seen.executions) / max(whole, _FEW_SECONDS)
    if share > MOST_OUTSIDE and whole > _FEW_SECONDS and chosen is seen.executions[0] and not choice.given:
        raise worked_by(name, [c for c in seen.around.processes() if c is not chosen.child], share)


def _refuse_together(name: str, chosen: Execution, seen: Survey) -> None:
    """Two processes that compute at the same time would share the processor that all runs are held to."""
    now = time.monotonic()
    for other, share in _shares(seen):
        together = other.began < (chosen.end() or now) and chosen.began < (other.end() or now)
        related = other.child is chosen.child or _below(other, chosen) or _below(chosen, other)
        if share >= _TOGETHER and together and not related:
            raise ProgramUnsupported(
                f"{name}: {_said(chosen)} and {_said(other)} compute at the same time; a probe holds one "
                "process: let the wrapper run one after the other, or probe one of them by itself"
            )


def _below(one: Execution, other: Execution) -> bool:
    """Whether the process of `one` descends from that of `other`."""
    child = one.child.parent
    while child is not None:
        if child is other.child:
            return True
        child = child.parent
    return False


def _chosen(name: str, seen: Survey, choice: WorkerChoice) -> Execution:
    shares = _shares(seen)
    if not shares:
        raise ProgramFailed(f"{name}: executed no program")
    if choice.program is not None:
        return _by_program(name, shares, choice.program)
    listed = [one for one in shares if one[1] >= LISTED]
    if choice.number is not None:
        if not 1 <= choice.number <= len(listed):
            raise ProgramUnsupported(f"{name}: --worker {choice.number}: there are {_list(listed)}")
        return listed[choice.number - 1][0]
    best, share = max(shares, key=lambda one: one[1])
    if share < CLEAR:
        raise ProgramUnsupported(
            f"{name}: no process has half of the CPU time; choose one with --worker N, the others' time is then scaled "
            f"like its own: {_list(listed)}"
        )
    return best


def _by_program(name: str, shares: Sequence[tuple[Execution, float]], wanted: str) -> Execution:
    """The longest execution in a process that has executed `wanted`, which may be a script that becomes a program."""
    path = os.path.realpath(shutil.which(wanted) or wanted)
    processes = {id(e.child) for e, _ in shares if _executes(e, path, wanted)}
    fitting = [one for one in shares if id(one[0].child) in processes]
    if not fitting:
        raise ProgramUnsupported(f"{name}: --program {wanted}: not executed; there are {_list(shares)}")
    return max(fitting, key=lambda one: one[1])[0]


def _executes(execution: Execution, path: str, name: str) -> bool:
    """Whether it is of the file `path`, or of one called `name`: as a program, or as the script of an interpreter."""
    worker = execution.worker
    files = [worker.executable, *(os.path.realpath(Path(worker.cwd, word)) for word in worker.argv[1:2])]
    return path in files or name in [Path(file).name for file in files]


def _list(shares: Sequence[tuple[Execution, float]]) -> str:
    said = [f"{n}: {_said(e)} ({share:.0%})" for n, (e, share) in enumerate(shares, 1)]
    more = f" and {len(said) - _MOST_LISTED} more" * (len(said) > _MOST_LISTED)
    return ", ".join(said[:_MOST_LISTED]) + more if said else "none"


def _said(execution: Execution) -> str:
    return shortened(execution.worker.argv)


def let_end(tracee: Tracee, deadline: float) -> None:
    """Wait for the running program to end, and for its wrapper, so that nothing is in the way of the next run.

    `deadline`: by time.monotonic; what goes on then is left to be ended with the tracing.
    """
    while time.monotonic() < deadline:
        occurrence = tracee.wait(max(0.0, deadline - time.monotonic()))
        if occurrence.what is What.ENDED:
            await_wrapper(tracee.program.argv[0], tracee.around, tracee.children, deadline)
            return
        if occurrence.what is What.EXECUTED:
            tracee.run_to_entry()
        if occurrence.what is not What.TIMEOUT:
            tracee.resume()
