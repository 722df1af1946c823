# SPDX-License-Identifier: Apache-2.0
"""Run a wrapper, a script or launcher that starts the program, and follow all that it starts."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint import linux
from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import Diverged, ProgramFailed, ProgramUnsupported
from checkpoint.process.children import FOLLOW, Child, Children, end, words_of
from checkpoint.process.memory import CallableProcess
from checkpoint.process.program import Program, Streams, Worker, fork_stopped
from checkpoint.process.ptrace import ptrace
from checkpoint.process.waiting import parent_of, process_cpu

_POLL_SECONDS = 0.002
_GRACE_SECONDS = 1.0

IDLE_SECONDS = 600.0
"""A wrapper that has computed nothing for so long waits for what does not come, such as a lock that the run before has
left: runs are ended early, too."""

_IDLE_LOOK_SECONDS = 0.25


class _Patience:
    """With wrapper `name`, which is being waited for, while a process of `followed` computes, or one is started."""

    def __init__(self, name: str, *followed: Children) -> None:
        self._name, self._followed = name, followed
        self._done: tuple[int, float] | None = None
        self._since = self._next = time.monotonic()

    def check(self, awaited: str) -> None:
        """Raise Diverged once nothing was done for IDLE_SECONDS."""
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + min(_IDLE_LOOK_SECONDS, IDLE_SECONDS)
        living = [child for children in self._followed for child in children.living()]
        done = sum(len(children.all) for children in self._followed), sum(map(_cpu_so_far, living))
        if done != self._done:
            self._done, self._since = done, now
        elif now - self._since > IDLE_SECONDS:
            waiting = ", ".join(child.command for child in living[:3])
            raise Diverged(
                f"{self._name}: nothing that it started has computed for {IDLE_SECONDS:g} s ({waiting}), "
                f"and it has not {awaited}; does it wait for what an earlier run has left? A wrapper has to do "
                "the same each time"
            )


def _cpu_so_far(child: Child) -> float:
    try:
        return process_cpu(child.pid)
    except OSError:
        return 0.0


def start_followed(
    program: Program, streams: Streams, environment: Mapping[str, str], cpu: int | None, around: Children
) -> Child:
    """Start `program` as the first process of `around`. Raises ProgramFailed."""
    pid = fork_stopped(program, streams, environment, cpu)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise ProgramFailed(f"{program.executable}: could not be started")
    ptrace(linux.PTRACE_SEIZE, pid, 0, FOLLOW)
    root = around.adopt(pid)
    os.kill(pid, signal.SIGCONT)
    return root


def reach_worker(
    program: Program, streams: Streams, environment: Mapping[str, str], cpu: int | None, around: Children
) -> tuple[Child, Child]:
    """Run the wrapper until its worker has made its execve, and stands there: the worker and the wrapper itself.

    All but the worker stay in `around`. Raises Diverged where the wrapper ends without it, or just waits;
    ProgramUnsupported where the worker would not run as all runs have to.
    """
    wanted = program.worker
    assert wanted is not None
    seen = 0
    found: list[Child] = []

    def is_worker(child: Child) -> bool:
        nonlocal seen
        if found or executable_of(child.pid) != wanted.executable:
            return False
        seen += 1
        if seen <= wanted.ordinal:
            return False
        found.append(child)
        return True

    around.on_exec = is_worker
    root = start_followed(program, streams, environment, cpu, around)
    patience = _Patience(program.argv[0], around)
    while not found:
        around.look()
        if not around.living() and not found:
            raise Diverged(
                f"{program.argv[0]}: executed {wanted.executable} {seen} times, and not {wanted.ordinal + 1} as "
                "before; a wrapper has to start the same programs in the same order in every run"
            )
        patience.check(f"executed {wanted.executable}")
        time.sleep(_POLL_SECONDS)
    try:
        _check_environment(found[0].pid, program, environment)
    except BaseException:
        # It is no longer followed, so nobody else would end it.
        end(found[0].pid)
        raise
    return found[0], root


def lead_session(worker: CallableProcess, program: Program) -> None:
    """Make the worker a session's leader, as programs started directly are: CRIU dumps no other process.

    A wrapper may have put the worker into a process group of its own (set -m); its number is the new group's, too.
    Raises ProgramUnsupported where the worker cannot leave that group.
    """
    if os.getsid(worker.pid) == worker.pid:
        return
    try:
        if os.getpgid(worker.pid) == worker.pid:
            worker.system_call(call_number("setpgid"), 0, os.getpgid(parent_of(worker.pid)))
        worker.system_call(call_number("setsid"))
    except OSError as error:
        raise ProgramUnsupported(
            f"{program.argv[0]}: puts {program.probed_executable} into a process group with others "
            "(set -m, setsid): no checkpoint can be taken there; let the wrapper leave that out"
        ) from error


def await_wrapper(name: str, around: Children, children: Children, deadline: float = math.inf) -> None:
    """Once a worker has ended, wait for the end of all of `around`, until `deadline` by time.monotonic at most.

    `children` are the worker's own. Raises Diverged where all just wait.
    """
    patience = _Patience(name, around, children)
    while around.living() and time.monotonic() < deadline:
        around.look()
        # One may hold a pipe that the wrapper reads, and stands at its exit event until it is looked at.
        children.look()
        patience.check("ended")
        time.sleep(_POLL_SECONDS)


def _check_environment(pid: int, program: Program, environment: Mapping[str, str]) -> None:
    given = dict(
        entry.split(b"=", 1) for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in entry
    )
    for name in ("GLIBC_TUNABLES", "LD_BIND_NOW"):
        if given.get(name.encode()) != environment.get(name, "").encode() and name in environment:
            raise ProgramUnsupported(
                f"{program.argv[0]}: takes {name} out of the environment of {program.probed_executable}, or changes "
                "it; without it runs do not agree. Let the wrapper leave it alone"
            )


def executable_of(pid: int) -> str:
    """The file that a process executes; "?" where it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return "?"


@dataclass
class Execution:
    """One program executed in a run, from its execve to the next or to the process's end. `cpu`: seconds of its own."""

    child: Child
    worker: Worker
    began: float
    cpu_before: float
    ended: float | None = None
    cpu_after: float | None = None

    def cpu(self) -> float:
        """CPU seconds so far."""
        if self.cpu_after is not None:
            return max(0.0, self.cpu_after - self.cpu_before)
        if self.child.ended is not None:
            return max(0.0, self.child.own_cpu - self.cpu_before)
        try:
            return max(0.0, process_cpu(self.child.pid) - self.cpu_before)
        except OSError:
            return 0.0

    def end(self) -> float | None:
        """When it ended; None while it runs."""
        return self.ended if self.ended is not None else self.child.ended


@dataclass
class Survey:
    """What one run of a wrapper executed, in order. `status` of the wrapper itself as waitpid gives it."""

    executions: list[Execution] = field(default_factory=list)
    around: Children = field(default_factory=Children)
    status: int = 0
    began: float = 0.0
    ended: float = 0.0
    left: tuple[str, ...] = ()
    """Commands of processes that went on after the wrapper had ended."""

    def note(self, child: Child) -> bool:
        """An execve of `child`: called while it is stopped."""
        now, cpu, executable = time.monotonic(), process_cpu(child.pid), executable_of(child.pid)
        for earlier in self.executions:
            if earlier.child is child and earlier.ended is None:
                earlier.ended, earlier.cpu_after = now, cpu
        ordinal = sum(e.worker.executable == executable for e in self.executions)
        worker = Worker(executable, ordinal, words_of(child.pid), _folder(child.pid))
        self.executions.append(Execution(child, worker, now, cpu))
        return False


def _folder(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
    except OSError:
        return "/"


def survey(
    program: Program, streams: Streams, *, cpu: int | None = None, judge: Callable[[Survey], None] | None = None
) -> Survey:
    """Run `program` to its end and note every program that it executes, directly or not.

    `judge` is called a hundred times a second at most with what was seen so far; what it raises ends the run. Raises
    Diverged where all just wait.
    """
    found = Survey()
    found.around.on_exec = found.note
    try:
        root = start_followed(program, streams, program.environment(), cpu, found.around)
        found.began = root.began
        patience = _Patience(program.argv[0], found.around)
        while root.ended is None:
            found.around.look()
            patience.check("ended")
            if judge is not None:
                judge(found)
            time.sleep(_POLL_SECONDS * 5)
        found.status, found.ended = root.status, root.ended
        found.around.await_end(_GRACE_SECONDS)
        found.left = tuple(child.command for child in found.around.living())
    finally:
        found.around.kill()
    return found
