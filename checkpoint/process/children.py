# SPDX-License-Identifier: Apache-2.0
"""Follow the processes that a program starts: when each lives, what it runs and what it takes.

They are traced only for their starts and ends: they run at their own speed, and whatever they start is followed too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from checkpoint import linux
from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import ProbeError, ProgramUnsupported
from checkpoint.process.plain_run import running_time
from checkpoint.process.program import Lineage
from checkpoint.process.ptrace import ptrace
from checkpoint.process.waiting import process_cpu, status_of, threads_of

FOLLOW = (
    linux.PTRACE_O_TRACEFORK | linux.PTRACE_O_TRACEVFORK | linux.PTRACE_O_TRACECLONE
    | linux.PTRACE_O_TRACEEXEC | linux.PTRACE_O_TRACEEXIT | linux.PTRACE_O_EXITKILL
)  # fmt: skip
STARTED = (linux.PTRACE_EVENT_FORK, linux.PTRACE_EVENT_VFORK, linux.PTRACE_EVENT_CLONE)
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

_WORKING, _AS_BUSIEST, FIRST_WORKS = 0.02, 0.05, 0.2
"""A thread counts as one that works with more than the first share of the process's CPU time, or, as where there are
many, the second of the busiest thread's. The first thread needs more, the third: less is for handing out work."""

_POLL_SECONDS = 0.005
_LONGEST_COMMAND = 60
_COPY = "(a copy of itself)"
_GONE = (ProbeError, OSError)


@dataclass
class Child:
    """One process, or one thread of such a process; times by the monotonic clock.

    parent    the child that started it; None where the program itself did
    command   what it executed last
    ended     when its end was seen; `gone` when its parent had waited for it, from when on nothing of it is left;
              `kept` when it was last seen that its parent had not
    cpu       seconds, those of its own children included that it waited for; `own_cpu` without them
    status    as waitpid gives it
    borrows   the program's memory, by vfork(2) and until its execve, and with it what was put into the code
    """

    pid: int
    parent: Child | None
    thread: bool
    began: float
    command: str = _COPY
    ended: float | None = None
    kept: float | None = None
    gone: float | None = None
    cpu: float = 0.0
    own_cpu: float = 0.0
    status: int = -1
    borrows: bool = False


@dataclass
class Life:
    """A thread that the program has started; CPU seconds of the first before that, and while the thread lived."""

    thread: Child
    lineage: Lineage
    first_before: float
    first: float | None = None

    def meanwhile(self, now: float) -> float:
        """Of the first, while the thread lived, or so far; `now`: CPU seconds of the first."""
        return now - self.first_before if self.first is None else self.first


@dataclass
class Children:
    """All that one program has started.

    `on_exec` is told of each execve, before the new program runs. Where it returns True the process stays stopped
    there, and is no longer followed.
    """

    all: list[Child] = field(default_factory=list)
    on_exec: Callable[[Child], bool] | None = None
    strayed: bool = False
    """Whether one that borrows the program's memory came to where the program was to stop, and went on."""
    _living: dict[int, Child] = field(default_factory=dict)
    _unreaped: list[Child] = field(default_factory=list)

    @property
    def watched(self) -> bool:
        """Whether `look` is to be called now and then: something lives, or was not waited for."""
        return bool(self._living or self._unreaped)

    def living(self) -> list[Child]:
        """The processes that have not ended."""
        return [child for child in self._living.values() if not child.thread]

    def processes(self) -> list[Child]:
        """Every process so far, in the order they were started."""
        return [child for child in self.all if not child.thread]

    def cpu(self) -> float:
        """CPU seconds of all so far, but for those that nobody waited for."""
        return sum(self._cpu_of(child) for child in self.all if child.parent is None)

    def _cpu_of(self, child: Child) -> float:
        if child.ended is not None or child.thread:
            return child.cpu
        try:
            own = process_cpu(child.pid)
        except OSError:
            return 0.0
        return own + sum(self._cpu_of(other) for other in self.all if other.parent is child)

    def adopt(self, pid: int, parent: Child | None = None) -> Child:
        """Follow a process that is traced with the options FOLLOW."""
        child = Child(pid, parent, is_thread(pid), time.monotonic())
        self.all.append(child)
        self._living[pid] = child
        return child

    def add(
        self,
        pid: int,
        parent: Child | None = None,
        *,
        clean: Callable[[int], None] | None = None,
        borrows: bool = False,
    ) -> None:
        """Follow process `pid`, which a traced process has just started, from its first instruction on.

        `clean` gets its number while it is stopped there. `borrows` as in Child.
        """
        child = self.adopt(pid, parent)
        child.borrows = borrows
        try:
            _, status, usage = os.wait4(pid, linux.WALL)
        except ChildProcessError:
            self._end(child, None)
            return
        if not os.WIFSTOPPED(status):
            self._end(child, usage, status)
            return
        with contextlib.suppress(*_GONE):
            if clean is not None and not child.thread:
                clean(pid)
            ptrace(linux.PTRACE_SETOPTIONS, pid, 0, FOLLOW)
            self._begin(child)
            self._let_go(child)

    def _begin(self, child: Child) -> None:
        """Before its first instruction."""

    def _let_go(self, child: Child, deliver: int = 0) -> None:
        """Past a stop of its own, with signal `deliver` if not 0."""
        ptrace(linux.PTRACE_CONT, child.pid, 0, deliver)

    def look(self) -> None:
        """Take note of what happened to them since the last look, and let those go on that were stopped for it."""
        again = True
        while again:
            again = False
            for child in list(self._living.values()):
                again |= self._look_at(child)
        for child in list(self._unreaped):
            looked = time.monotonic()
            if Path(f"/proc/{child.pid}").exists():
                child.kept = looked
            else:
                child.gone = time.monotonic()
                self._unreaped.remove(child)

    def _look_at(self, child: Child) -> bool:
        try:
            pid, status, usage = os.wait4(child.pid, linux.WALL | os.WNOHANG)
        except ChildProcessError:
            self._end(child, None)
            return False
        if not pid:
            return False
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self._end(child, usage, status)
        else:
            with contextlib.suppress(*_GONE):
                self._go_on(child, os.WSTOPSIG(status), status >> 16)
        return True

    def _end(self, child: Child, usage: resource.struct_rusage | None, status: int = -1) -> None:
        child.ended = child.kept = time.monotonic()
        child.status = status
        del self._living[child.pid]
        if usage is not None:
            child.cpu = usage.ru_utime + usage.ru_stime
        if child.thread or usage is None:
            child.gone = child.ended
        else:
            self._unreaped.append(child)

    def _go_on(self, child: Child, stop: int, event: int) -> None:
        deliver = 0
        if event in STARTED:
            borrows = child.borrows and event == linux.PTRACE_EVENT_VFORK
            self.add(event_message(child.pid), child, borrows=borrows)
        elif event == linux.PTRACE_EVENT_EXEC:
            child.command, child.borrows = command_of(child.pid), False
            if self.on_exec is not None and self.on_exec(child):
                del self._living[child.pid]
                return
        elif event == linux.PTRACE_EVENT_EXIT:
            if not child.thread:
                child.own_cpu = process_cpu(child.pid)
        elif event == linux.PTRACE_EVENT_STOP:
            if stop in STOPPING:
                ptrace(linux.PTRACE_LISTEN, child.pid)
                return
        elif stop == signal.SIGSTOP and child.borrows:
            # Stopped it would be for ever: only its parent would wake it, and that one waits for it in the kernel.
            self.strayed = True
        else:
            deliver = stop
        self._let_go(child, deliver)

    def await_end(self, seconds: float) -> None:
        """Wait until all have ended, `seconds` at most."""
        deadline = time.monotonic() + seconds
        self.look()
        while self._living and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            self.look()

    def kill(self, unknown: Iterable[int] = ()) -> None:
        """End all that live, and take note of their ends. Never raises for dead ones.

        `unknown`: processes that were just started, and are traced since.
        """
        fresh = set(unknown)
        while self._living or fresh:
            for number in fresh - {child.pid for child in self.all}:
                self.adopt(number)
            for child in list(self._living.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            fresh = set()
            for child in sorted(self._living.values(), key=lambda one: not one.thread):
                if not child.thread:
                    reap_threads(child.pid, started=fresh)
                reap(child.pid, fresh)
                self._end(child, None)


def most_at_once(children: Sequence[Child]) -> int:
    """Most of them alive at the same time."""
    edges = [(c.began, 1) for c in children] + [(c.ended, -1) for c in children if c.ended is not None]
    alive = most = 0
    for _, change in sorted(edges):
        alive += change
        most = max(most, alive)
    return most


def most_working(threads: Sequence[Child], whole: float) -> int:
    """Most of them that worked at the same time; `whole`: CPU seconds of all and the first."""
    least = min(_WORKING * whole, _AS_BUSIEST * busiest(threads))
    return most_at_once([child for child in threads if seconds_of(child) > least])


def busiest(threads: Sequence[Child]) -> float:
    """CPU seconds of the one that worked most."""
    return max(map(seconds_of, threads), default=0.0)


def seconds_of(thread: Child) -> float:
    """CPU seconds of a thread, so far or at its end."""
    return thread.own_cpu if thread.ended is not None else running_time(thread.pid)


def end(pid: int) -> None:
    """End a traced process, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    reap(pid)


def reap(pid: int, started: set[int] | None = None) -> int:
    """Wait for the end of a process or thread that was sent SIGKILL, past its ptrace stops; -1 where it is gone.

    SIGKILL does not end a stop at the exit event: the kernel drops signals to a process that is dying already.
    `started` gets the processes that it leaves: one that it had just started is stopped, and nobody knows of it.
    """
    while True:
        if started is not None:
            started |= _started_by(pid)
        with contextlib.suppress(OSError, ProbeError):
            ptrace(linux.PTRACE_CONT, pid)
        try:
            _, status = os.waitpid(pid, linux.WALL)
        except ChildProcessError:
            return -1
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            return status


def _started_by(number: int) -> set[int]:
    """Processes that a thread has started, and that are not waited for (proc_pid_task(5): children)."""
    try:
        return set(map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split()))
    except OSError:
        return set()


def reap_threads(pid: int, known: Iterable[int] = (), started: set[int] | None = None) -> None:
    """See the threads of process `pid` beside its first, which was sent SIGKILL, past their exit events: those `known`,
    and one that it had just started, which is traced already. The process cannot be waited for before them.

    `started` as for `reap`.
    """
    numbers = set(known)
    with contextlib.suppress(OSError):
        numbers |= threads_of(pid)
    for number in numbers - {pid}:
        reap(number, started)


def refuse_shared(name: str, pid: int) -> NoReturn:
    """End process `pid`, which program `name` has started with its own memory. Raises ProgramUnsupported."""
    end(pid)
    raise ProgramUnsupported(
        f"{name}: started a process that shares its memory; a probe holds one process. To go on, probe the worker by "
        "itself."
    )


def event_message(pid: int) -> int:
    """What the ptrace event at which `pid` stands tells: the new process, or the exit status."""
    value = ctypes.c_ulong()
    ptrace(linux.PTRACE_GETEVENTMSG, pid, 0, ctypes.addressof(value))
    return value.value


def is_thread(pid: int) -> bool:
    """Whether `pid` is a thread beside the first of its process; False where it is gone."""
    try:
        return int(status_of(pid).get("Tgid", pid)) != pid
    except OSError:
        return False


def name_thread(child: Child) -> None:
    """Make what a thread calls itself now its command, where it is not gone."""
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{child.pid}/comm").read_text(errors="replace").strip()
        child.command = "".join(c if c.isprintable() else "?" for c in name)


def command_of(pid: int) -> str:
    """The command line of a process, shortened; "?" where it is gone."""
    return shortened(words_of(pid))


def words_of(pid: int) -> tuple[str, ...]:
    """The command line of a process, word by word; "?" where it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ("?",)
    return tuple(word.decode(errors="replace") for word in words)


def shortened(words: Sequence[str]) -> str:
    """A command line for a sentence: without the program's folder, cut at the end."""
    said = " ".join([words[0].rpartition("/")[2] or words[0], *words[1:]])
    printable = "".join(c if c.isprintable() else "?" for c in said)
    return printable if len(printable) <= _LONGEST_COMMAND else printable[: _LONGEST_COMMAND - 3] + "..."


def shares_memory(pid: int, other: int) -> bool:
    """Whether two processes have one address space (kcmp(2), KCMP_VM); False where the kernel cannot tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(call_number("kcmp"), pid, other, linux.KCMP_VM, 0, 0) == 0)
