# SPDX-License-Identifier: Apache-2.0
"""Restore a phase once under ptrace, with a counter in every block, and see what its region executes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import NodeUnfit, PhaseFailed, ProgramFailed
from checkpoint.flat.control import Option
from checkpoint.flat.image import FlatImage
from checkpoint.flow import classes
from checkpoint.flow.classes import NumberClasses, classes_of
from checkpoint.flow.copied_steps import CopiedSteps
from checkpoint.flow.flow import Flow, Passed, Plan, Window, state_of
from checkpoint.flow.pieces import flow_of, pieces_of
from checkpoint.flow.stepping import calls_in, prepare, step, window_of
from checkpoint.flow.stubs_in_place import MappedImage, StubsInPlace, mapped_images
from checkpoint.linux import (
    PTRACE_CONT,
    PTRACE_O_EXITKILL,
    PTRACE_O_TRACESYSGOOD,
    PTRACE_SETOPTIONS,
    PTRACE_SYSCALL,
    WALL,
)
from checkpoint.parent import die_with_parent
from checkpoint.process.program import Program
from checkpoint.process.ptrace import Registers, ptrace
from checkpoint.process.tracee import Tracee
from checkpoint.process.waiting import status_of
from checkpoint.restore.criu_restore import RESTORE_SECONDS, RestoreJob, region_limit
from checkpoint.restore.direct_agent import RESTORED, Control, launch
from checkpoint.restore.direct_restore import direct_spec
from checkpoint.restore.watched_phase import (
    Lost,
    answering_child,
    confined,
    end_phase,
    ending,
    restorer_said,
    stub_areas,
)

MOST_CALLS = 200_000
"""Calls compared one by one; of a phase that makes more, the first."""

_SYSCALL_STOP = signal.SIGTRAP | 0x80
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS)
_PATIENCE = 20
"""Counted, a region may take so many times as long as timed."""
_LOOK_SECONDS = 0.05
_RT_SIGRETURN = call_number("rt_sigreturn")
_WRITTEN_AT_ONCE = 1 << 24
_READ_AT_ONCE = 1 << 18
"""Still in the cache when it is looked at."""
_WITH_PROCESS_NUMBERS = {call_number(name) for name in ("kill", "tkill", "tgkill", "sched_setaffinity", "setpgid")}
"""Calls with a process number among the arguments compared: a restored process has another."""


_PLAIN = Plan()


class FlowWatcher:
    """One phase whose flow is watched, as often as wanted. `local`, beside `flat`: its images are read once."""

    def __init__(
        self, job: RestoreJob, flat: FlatImage, pages: Path, restorer: Path, *, scratch: Path, cpu: int | None
    ) -> None:
        prepare()
        classes.prepare()
        self._job, self._flat, self._pages, self._restorer = job, flat, pages, restorer
        self._scratch, self._cpu = scratch, cpu
        self._images: list[MappedImage] | None = None

    def watch(self, plan: Plan = _PLAIN, *, seconds: float | None = None) -> Flow:
        """Restore the phase, run it to its region's end, and end it. `seconds`: how long that may take, restoring not
        counted. Raises PhaseFailed where the region does not end as it should, NodeUnfit."""
        with self.begun(plan, seconds=seconds) as flow:
            return flow()

    @contextlib.contextmanager
    def begun(
        self, plan: Plan = _PLAIN, *, seconds: float | None = None, cpu: int | None = None
    ) -> Iterator[Callable[[], Flow]]:
        """Likewise, but the block is run meanwhile; it gets what waits for the flow. `cpu`: another processor for it
        than ours."""
        at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"flow-{self._job.phase}-", dir=self._scratch) as name:
            folder = Path(name)
            on = self._cpu if cpu is None else cpu
            spec = direct_spec(self._job, self._flat, self._pages, self._restorer, folder, on)
            if self._images is None:
                copies = Path(spec["copies"])
                local = {number: (copies / str(number)).resolve() for number in range(len(self._flat.files))}
                self._images = mapped_images(self._flat, local)
            limit = region_limit(self._job) * _PATIENCE if seconds is None else seconds
            run = _Run(spec, self._flat, folder, self._images, plan, limit)
            with answering_child(partial(_report, run)) as answer:
                yield lambda: self._flow(answer(), at)

    def _flow(self, said: bytes, begun: float) -> Flow:
        """The flow that its watcher tells."""
        arrays = _arrays(said)
        if "refused" in arrays:
            raise NodeUnfit(f"phase {self._job.phase}: its flow could not be watched: {arrays['refused'].item()}")
        if "failure" in arrays:
            raise PhaseFailed(f"phase {self._job.phase}: {arrays['failure'].item()} while its flow was watched")
        images = {one.path: one.image.sha256 for one in self._images or ()}
        return flow_of(arrays, images, MOST_CALLS, time.monotonic() - begun)


def _arrays(said: bytes) -> dict[str, Any]:
    if not said:
        return {"failure": np.array("its watcher ended without an answer")}
    with np.load(io.BytesIO(said), allow_pickle=False) as arrays:
        return dict(arrays)


def _report(run: _Run, writer: int, parent: int) -> NoReturn:
    """In a child: the run, and its arrays to `writer`."""
    answer: dict[str, Any] = {"failure": np.array("it failed")}
    try:
        die_with_parent(parent)
        answer = run.made()
    except (Lost, ProgramFailed) as error:
        answer = {"failure": np.array(str(error))}
    except (OSError, LookupError, OverflowError) as error:
        answer = {"refused": np.array(str(error))}
    finally:
        packed = io.BytesIO()
        np.savez(packed, **answer)
        with os.fdopen(writer, "wb") as out:
            out.write(packed.getbuffer())
        os._exit(0)


class _Run:
    def __init__(
        self,
        spec: dict[str, Any],
        flat: FlatImage,
        folder: Path,
        images: Sequence[MappedImage],
        plan: Plan,
        seconds: float,
    ) -> None:
        self._spec, self._stamps, self._folder, self._images, self._plan = spec, flat.stamps, folder, images, plan
        self._stubs_of_phase = stub_areas(flat)
        self._seconds = seconds
        self._calls: list[tuple[int, int, int]] = []
        self._passed: list[Passed] = []
        self._inside = self._gone = False
        self._copies: CopiedSteps | None = None

    def made(self) -> dict[str, Any]:
        """Arrays of the flow (pieces.py)."""
        self._spec["option_bits"] = confined(self._spec, self._folder) | Option.FILTER_CALLS | Option.ASK_KERNEL
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        self._control = Control(self._stamps, str(self._folder))
        self._deadline = time.monotonic() + RESTORE_SECONDS
        self._pid = launch(self._spec, str(self._folder), self._control.fd, traced=True)
        self._tracee = Tracee(self._pid, _UNNAMED)
        try:
            self._restore()
            self._overwrite()
            self._stubs = StubsInPlace(self._tracee, self._images, self._plan.points)
            self._ours = [*self._stubs_of_phase, *self._stubs.areas]
            if self._plan.in_copies:
                # Without room for them its steps are made one by one.
                with contextlib.suppress(LookupError, OSError):
                    self._copies = CopiedSteps(
                        self._tracee, self._images, self._ours, self._signalled_in_steps, self._wait
                    )
            self._deadline = time.monotonic() + self._seconds
            self._run_to_end()
            classes = self._numbers()
            return pieces_of(self._stubs.counts(), self._calls, self._passed, classes, self._copies is not None)
        finally:
            self._end()

    def _restore(self) -> None:
        """Run the restorer to the point where it has become the phase, before the phase's first instruction."""
        if not os.WIFSTOPPED(self._wait()):
            raise Lost(f"it could not be started ({restorer_said(self._control)})")
        ptrace(PTRACE_SETOPTIONS, self._pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)
        restored = False
        while True:
            ptrace(PTRACE_SYSCALL, self._pid, 0, 0)
            status = self._wait()
            if not os.WIFSTOPPED(status):
                raise Lost(f"it could not be restored ({restorer_said(self._control)})")
            if os.WSTOPSIG(status) != _SYSCALL_STOP:
                continue
            if restored:
                break
            # The restorer's last call is rt_sigreturn; the stop behind that is in the phase.
            is_last = self._tracee.registers().orig_rax == _RT_SIGRETURN
            restored = is_last and self._control.report()[0] == RESTORED
        self._tracee.reopen_memory()
        self._tracee.attached = True

    def _overwrite(self) -> None:
        for address, data in self._plan.contents() if self._plan.contents else ():
            for start in range(0, len(data), _WRITTEN_AT_ONCE):
                self._tracee.write(address + start, data[start : start + _WRITTEN_AT_ONCE])

    def _run_to_end(self) -> None:
        deliver = 0
        status: int | None = None
        while True:
            if status is None:
                watched = len(self._calls) < MOST_CALLS
                ptrace(PTRACE_SYSCALL if watched else PTRACE_CONT, self._pid, 0, deliver)
                status = self._wait()
            deliver, found, status = 0, status, None
            if not os.WIFSTOPPED(found):
                raise Lost(f"it ended before its region did ({ending(found)})")
            stopped = os.WSTOPSIG(found)
            if stopped == _SYSCALL_STOP:
                self._at_call()
            elif stopped == signal.SIGSTOP:
                if self._control.event(self._spec["end"])[0]:
                    return
                status = self._at_point()
            elif stopped != signal.SIGTRAP:
                self._signalled(stopped)
                deliver = stopped

    def _signalled(self, number: int) -> None:
        """Raises Lost where this signal ends the phase."""
        if number in _FATAL and not self._handles(number):
            raise Lost(f"it was ended by signal {number} at {self._tracee.registers().rip:#x}")

    def _signalled_in_steps(self, number: int) -> NoReturn:
        self._signalled(number)
        raise Lost(f"it handled signals (the first: {number}) while its steps were noted")

    def _handles(self, number: int) -> bool:
        return bool(int(status_of(self._pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)

    def _at_call(self) -> None:
        self._inside = not self._inside
        if not self._inside:
            return
        r = self._tracee.registers()
        self._note_call(r.rip, r.orig_rax, r)

    def _note_call(self, at: int, number: int, r: Registers) -> None:
        """Keep a call that is the program's own: none of the stubs', which lie before `at`. Copies are told of all."""
        if self._copies:
            self._copies.called(number, r)
        if not any(start <= at <= end for start, end in self._ours):
            first, third = (0, 0) if number in _WITH_PROCESS_NUMBERS else (r.rdi, r.rdx)
            self._calls.append((number, first, third))

    def _at_point(self) -> int | None:
        """Note what has been executed so far, and make steps; the status of a stop that was no step."""
        known = {one.point for one in self._passed}
        fresh = sorted(self._stubs.reached() - known)
        if not fresh:
            return None
        counts = self._stubs.counts()
        try:
            window, status = self._window()
        except TimeoutError:
            raise Lost("its region did not end") from None
        self._gone = bool(status) and not os.WIFSTOPPED(status)
        self._passed.append(Passed(fresh[0], sum(counts.values()), state_of(counts), window))
        self._inside = False
        return status or None

    def _window(self) -> tuple[Window, int]:
        if self._copies:
            if len(self._calls) >= MOST_CALLS:
                self._copies.call_unseen()
            return self._copies.make(self._plan.steps, self._note_calls, self._stubs.areas, self._deadline)
        noted, status = step(self._pid, self._plan.steps, self._deadline)
        self._note_calls(noted)
        return window_of(noted, self._tracee.read, self._stubs.areas), status

    def _note_calls(self, noted: npt.NDArray[np.uint64]) -> None:
        for at, r in calls_in(noted, self._tracee.read):
            self._note_call(at, r.rax, r)

    def _numbers(self) -> NumberClasses:
        total = NumberClasses()
        for address, size, floats in self._plan.numbers:
            for start in range(0, size, _READ_AT_ONCE):
                part = self._tracee.read(address + start, min(_READ_AT_ONCE, size - start))
                total += classes_of(np.frombuffer(part, dtype=np.uint64), floats)
        return total

    def _wait(self) -> int:
        while True:
            found, status = os.waitpid(self._pid, os.WNOHANG | WALL)
            if found:
                self._gone = os.WIFEXITED(status) or os.WIFSIGNALED(status)
                return status
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise Lost("its region did not end")
            signal.sigtimedwait({signal.SIGCHLD}, min(left, _LOOK_SECONDS))

    def _end(self) -> None:
        if not self._gone:
            end_phase(self._pid)
        self._tracee.close_memory()
        self._control.close()


_UNNAMED = Program(("phase",), "phase", "/")
