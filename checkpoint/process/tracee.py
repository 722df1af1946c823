# SPDX-License-Identifier: Apache-2.0
"""One process under our control: ptrace, its memory, and system calls made inside it.

The states a Tracee goes through: *stopped* after `start` (at the program's entry point) and after every event
that `wait` returns; *running* after `resume`; *detached* after `detach`, when other tools may trace it.
Registers, system calls and `detach` need it stopped by ptrace. Memory may be read at any time and written while
the process is stopped in any way.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from checkpoint import linux
from checkpoint.errors import ProgramFailed, ProgramNotRunnable
from checkpoint.process.children import (
    FOLLOW,
    STARTED,
    STOPPING,
    Child,
    Children,
    event_message,
    is_thread,
    reap,
    refuse_shared,
    shares_memory,
)
from checkpoint.process.memory import CallableProcess, patch_memory
from checkpoint.process.occurrence import Ending, Occurrence, What
from checkpoint.process.plain_run import running_time
from checkpoint.process.program import Program, Streams, fork_stopped
from checkpoint.process.ptrace import (
    Registers,
    interrupt,
    is_breakpoint,
    move_by,
    ptrace,
    registers_of,
    run_to_breakpoint,
    set_registers,
    swap_signal_mask,
)
from checkpoint.process.team import Team
from checkpoint.process.threads import HelperThreads
from checkpoint.process.waiting import child_signals_blocked, process_cpu, process_state, reaches_state
from checkpoint.process.wrapper import await_wrapper, lead_session, reach_worker

__all__ = ["Ending", "Occurrence", "Tracee", "What"]

_BREAKPOINT = b"\xcc"
_START_SECONDS, _POLL_SECONDS = 60.0, 0.002
_PASSED_ON = Occurrence(What.TIMEOUT, -1)


class Tracee(CallableProcess):
    """A program started by us. Use as a context manager: leaving it kills the process and reaps it."""

    def __init__(self, pid: int, program: Program) -> None:
        super().__init__(pid)
        self.program = program
        self.attached = self._pause_requested = self._astray = self._borrowed = self._listens = False
        self._acting = 0
        """Number of another thread that stands at a breakpoint, while all are stopped for it."""
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self.own_cpu, self.helpers_cpu = math.nan, 0.0
        """CPU seconds of the first thread at its exit event, and of the other threads then."""
        self.started_at = self.executed_cpu = self.ended_at = 0.0
        """Of a wrapper's worker at its execve: when, and its CPU seconds before; when it ended."""
        self.children, self.around = Children(), Children()
        name, marks = program.name, program.marking
        self.team = Team(name, program.threads, pid, marks, self._ask_again) if program.threads > 1 else None
        """The other threads, where they share the program's work."""
        self.helpers = HelperThreads(name, pid) if self.team is None else self.team
        self.root: Child | None = None
        """Of a wrapper's worker: the processes that are not its own children, and the wrapper itself."""
        self.originals: list[Callable[[], Iterable[tuple[int, bytes]]]] = []
        """Each tells the addresses where something was put into the program's code, and what had been there."""
        self.wall_clock_shift: Callable[[], int] = int
        """By how many nanoseconds the time of day that the program is told is later than the node's."""

    def __enter__(self) -> Tracee:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @staticmethod
    def start(
        program: Program, streams: Streams, environment: Mapping[str, str] | None = None, *, cpu: int | None = None
    ) -> Tracee:
        """Start `program` and stop it at its entry point, libraries mapped, nothing of its own run yet."""
        env = program.environment() if environment is None else environment
        if program.worker is not None:
            return Tracee._start_worker(program, streams, env, cpu)
        tracee = Tracee(fork_stopped(program, streams, env, cpu), program)
        try:
            tracee._attach_to_starting()
        except BaseException:
            tracee.kill()
            raise
        return tracee

    @staticmethod
    def _start_worker(program: Program, streams: Streams, env: Mapping[str, str], cpu: int | None) -> Tracee:
        around = Children()
        try:
            worker, root = reach_worker(program, streams, env, cpu, around)
        except BaseException:
            around.kill()
            raise
        tracee = Tracee(worker.pid, program)
        tracee.around, tracee.root, tracee.attached = around, root, True
        try:
            ptrace(linux.PTRACE_SETOPTIONS, worker.pid, 0, FOLLOW)
            tracee.started_at, tracee.executed_cpu = time.monotonic(), process_cpu(worker.pid)
            tracee.run_to_entry()
            if worker is not root:
                lead_session(tracee, program)
        except BaseException:
            tracee.kill()
            raise
        return tracee

    def finish(self) -> Ending:
        """The end of the whole run, once the process itself has ended: where a wrapper started it, the wrapper's."""
        await_wrapper(self.program.argv[0], self.around, self.children)
        if self.root is not None and self.root.pid != self.pid:
            before = self.started_at - self.root.began
            return Ending(self.root.status, self.root.cpu, before + (self.root.ended or self.ended_at) - self.ended_at)
        cpu = self.usage.ru_utime + self.usage.ru_stime if self.usage else 0.0
        assert self.status is not None
        return Ending(self.status, cpu, self.started_at - self.root.began if self.root else 0.0)

    def _attach_to_starting(self) -> None:
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.status = status
            raise ProgramFailed(f"{self.program.executable}: could not be started")
        ptrace(linux.PTRACE_SEIZE, self.pid, 0, FOLLOW)
        self.attached = True
        os.kill(self.pid, signal.SIGCONT)
        while True:
            if (occurrence := self.wait(_START_SECONDS)).what is What.EXECUTED:
                break
            if occurrence.what in (What.ENDED, What.TIMEOUT):
                said = "the kernel refuses to execute it (a damaged file?)"
                raise ProgramNotRunnable(f"{self.program.executable}: {said}")
            self.resume()
        self.started_at = time.monotonic()
        self.run_to_entry()

    @property
    def marking(self) -> int:
        """Number of the thread that stops and is looked at for all: the first, or one that marks in its place."""
        return self.pid if self.team is None else self.team.marking

    @property
    def is_stopped(self) -> bool:
        """Whether ptrace can be asked: not once an interrupt or a time limit came while it ran code of ours."""
        return self.status is None and not self._astray and process_state(self._acting or self.marking) == "t"

    def run_to_entry(self) -> None:
        """After an execve event: go on to the entry point of the new program, where its libraries are mapped."""
        entry = self.auxiliary(linux.AT_ENTRY)
        self.reopen_memory()
        saved = self.read(entry, 1)
        self.write(entry, _BREAKPOINT)
        self.resume()
        occurrence = self.wait(_START_SECONDS)
        if occurrence.what is not What.BREAKPOINT:
            raise ProgramFailed(
                f"{self.program.executable}: {occurrence.what.value} before its entry point "
                "(a missing library? try to run it by hand)"
            )
        self.write(entry, saved)
        move_by(self.pid, -1)

    def resume(self, deliver: int = 0) -> None:
        """Let the stopped process run, with signal `deliver` if not 0."""
        self._acting = 0
        self.settle()
        self.helpers.release()
        self.resume_first(deliver)

    def resume_first(self, deliver: int = 0) -> None:
        """As `resume`, but other threads that were stopped with the marking one stay so."""
        # SIGKILL may have ended the stop already: then `wait` tells of the end.
        with contextlib.suppress(ProcessLookupError):
            ptrace(linux.PTRACE_CONT, self.marking, 0, deliver)

    def wait(self, timeout: float | None = None) -> Occurrence:
        """The next event that concerns us; the process is stopped then (unless TIMEOUT or ENDED).

        Signals on their way to the program are passed on without returning. A SIGSTOP that the program sends itself is
        returned as STOPPED and is not delivered while attached. Children and further threads are followed, without
        returning; at a stop, further threads are asleep. `timeout` in seconds; None waits for ever. Whatever stop comes
        first answers a pause that was requested: only where no other comes before it is it returned as PAUSED.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            occurrence = self._next(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if occurrence is not _PASSED_ON:
                if occurrence.what is not What.TIMEOUT:
                    self._pause_requested = False
                if occurrence.what not in (What.TIMEOUT, What.ENDED, What.EXITING):
                    self.helpers.settle()
                return occurrence

    def _next(self, timeout: float | None) -> Occurrence:
        status = self._wait_status(timeout)
        if status is None:
            return Occurrence(What.TIMEOUT)
        if self.team is not None and self.team.hands_back(status):
            self._ask_again()
            return _PASSED_ON
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self.ended_at = time.monotonic()
            self.status = status
            self.attached = False
            return Occurrence(What.ENDED, status)
        stop, event = os.WSTOPSIG(status), status >> 16
        if event in STARTED:
            self._started(event)
            return _PASSED_ON
        if event == linux.PTRACE_EVENT_EXEC:
            self.originals.clear()
            self.helpers.marking_ends = False
            self.reopen_memory()
            return Occurrence(What.EXECUTED)
        if event == linux.PTRACE_EVENT_EXIT:
            whole = process_cpu(self.pid)
            self.own_cpu = whole if self.team or not self.helpers.all else running_time(self.pid)
            self.helpers_cpu = max(0.0, whole - self.own_cpu)
            self.helpers.marking_ends = True
            return Occurrence(What.EXITING, event_message(self.pid))
        if event == linux.PTRACE_EVENT_STOP:
            self._listens = stop in STOPPING
            if self._listens:
                ptrace(linux.PTRACE_LISTEN, self.marking)
            elif self._is_needed():
                self._acting = self.helpers.at_breakpoint()
                if self._acting:
                    return Occurrence(What.BREAKPOINT)
                self.resume()
                self._ask_again()
            elif self._pause_requested:
                return Occurrence(What.PAUSED)
            else:
                self.resume_first()
            return _PASSED_ON
        if stop == signal.SIGTRAP and is_breakpoint(self.marking):
            return Occurrence(What.BREAKPOINT)
        if stop == signal.SIGSTOP and self.attached:
            return Occurrence(What.STOPPED)
        self.resume_first(stop)
        return _PASSED_ON

    def _wait_status(self, timeout: float | None) -> int | None:
        followed = (self.children, self.around, self.helpers)
        if timeout is None and not any(others.watched for others in followed):
            _, status, self.usage = os.wait4(self.marking, linux.WALL)
            return status
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with child_signals_blocked():
            while True:
                waited = self.team.wait() if self.team else os.wait4(self.pid, linux.WALL | os.WNOHANG)
                if waited[0]:
                    _, status, self.usage = waited
                    return status
                for others in followed:
                    others.look()
                if self._is_needed():
                    interrupt(self.marking)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                # Another thread, such as a progress bar's, does not hold the signal back, and is offered it when it
                # comes between the look and the wait: look again soon.
                signal.sigtimedwait({signal.SIGCHLD}, min(left, _POLL_SECONDS))

    def _is_needed(self) -> bool:
        """Whether the marking thread is to stop for another that stands at a breakpoint."""
        return self.helpers.meet_breakpoint and not self._borrowed and not self._listens

    def _started(self, event: int) -> None:
        """Follow what the program has just started. Raises ProgramUnsupported for a process with its memory."""
        starter = self.marking
        child = event_message(starter)
        if is_thread(child):
            self.helpers.add(child)
        else:
            shared = shares_memory(self.pid, child)
            if shared and event != linux.PTRACE_EVENT_VFORK:
                refuse_shared(self.program.name, child)
            # A child by vfork has the program's memory until its execve: what is changed there is changed for both.
            self.children.add(child, clean=None if shared else self._clean_copy, borrows=shared)
        ptrace(linux.PTRACE_CONT, starter)
        self._ask_again()

    def _ask_again(self) -> None:
        if self._pause_requested:
            interrupt(self.marking)

    def _clean_copy(self, child: int) -> None:
        """Give a forked child, stopped, the program's own code back: nobody would answer its breakpoints and stops."""
        patch_memory(child, (patch for originals in self.originals for patch in originals()))

    def detach(self, *, leave_stopped: bool = False) -> None:
        """Stop tracing. With `leave_stopped` the process stays in the stopped state T, for CRIU to dump."""
        ptrace(linux.PTRACE_DETACH, self.pid, 0, signal.SIGSTOP if leave_stopped else 0)
        self.attached = False

    def reattach(self) -> None:
        """Trace again a process that is stopped (state T); it stays stopped."""
        ptrace(linux.PTRACE_SEIZE, self.pid, 0, FOLLOW)
        self.attached = True
        status = self._wait_status(_START_SECONDS)
        if status is None or not os.WIFSTOPPED(status):
            self.status = status
            raise ProgramFailed(f"{self.program.name}: ended while it was stopped for a checkpoint")

    def wait_until_stopped(self) -> None:
        """Wait until the detached process is in the stopped state T. Raises ProgramFailed where it never is."""
        if not reaches_state(self.pid, "T", _START_SECONDS):
            raise ProgramFailed(f"process {self.pid} did not stop for its checkpoint")

    def continue_from_stop(self) -> None:
        """End the stopped state of a reattached process and let it run."""
        os.kill(self.pid, signal.SIGCONT)
        self.resume()

    def request_pause(self) -> None:
        """Ask the running process to stop at whatever instruction it is; a later `wait` returns PAUSED."""
        self._pause_requested = True
        self._ask_again()

    def kill(self) -> None:
        """End the process whatever its state, reap it, close what we hold of it. Never raises for a dead one."""
        left = set[int]()
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.helpers.end(self.pid, left)  # a process cannot be reaped before its threads
            self.status = reap(self.pid, left)
        self.children.kill(left)
        self.around.kill()
        self.attached = False
        self.close_memory()

    def registers(self) -> Registers:
        return registers_of(self._acting or self.marking)

    def set_registers(self, registers: Registers) -> None:
        set_registers(self._acting or self.marking, registers)

    def run_to_trap(self, start: Registers) -> Registers:
        """Run code that was put into the stopped process, from `start` to its breakpoint; the registers there. Its own
        are as before afterwards. Raises ProgramFailed where it does not come there."""
        saved = self.registers()
        self.set_registers(start)
        # A handler of the program's own may not run now: it might leave by longjmp, and never reach the trap.
        number = self._acting or self.marking
        mask = swap_signal_mask(number)
        self._borrowed = True
        try:
            if self._acting:
                if not run_to_breakpoint(self._acting, _START_SECONDS):
                    raise ProgramFailed(f"process {self.pid}: a thread did not come back from code put into it")
                return self.registers()
            self.resume_first()
            while (occurrence := self.wait(_START_SECONDS)).what is What.STOPPED:
                self.resume_first()  # somebody's SIGSTOP is not delivered here either
            if occurrence.what is not What.BREAKPOINT:
                raise occurrence.instead_of_breakpoint(self.pid)
            return self.registers()
        finally:
            self._borrowed = False
            if self.is_stopped:
                self.set_registers(saved)
                swap_signal_mask(number, mask)
            else:
                self._astray = True
