# SPDX-License-Identifier: Apache-2.0
"""Record the system calls of a phase's region, by restoring it once under ptrace. Build time only.

A region that opens files by their paths meets the node's files: what it opens must travel, and what it changes must
be kept from the node. The numbers of the calls also make the filter of `probe run --only-recorded-calls`.

Now and then the phase is stopped to see which code it is in: the tracer does not count the hottest blocks, so nobody
else knows.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from checkpoint import strict_json
from checkpoint.binary.syscall_names import call_number
from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.control import Option
from checkpoint.flat.convert import LARGEST_PARK
from checkpoint.flat.image import FlatImage
from checkpoint.linux import (
    PTRACE_CONT,
    PTRACE_EVENT_SECCOMP,
    PTRACE_O_EXITKILL,
    PTRACE_O_TRACESYSGOOD,
    PTRACE_SETOPTIONS,
    PTRACE_SYSCALL,
    WALL,
)
from checkpoint.parent import die_with_parent
from checkpoint.process.ptrace import ptrace, registers_of
from checkpoint.process.waiting import WAITS_FOR_EVER, EndlessWait, EndlessYield
from checkpoint.restore.criu_restore import RESTORE_SECONDS, RestoreJob, region_limit
from checkpoint.restore.direct_agent import RESTORED, Control, launch
from checkpoint.restore.direct_restore import direct_spec
from checkpoint.restore.known_calls import OpenedPaths, waits_until
from checkpoint.restore.quiet_calls import FEWEST, in_call, let_through, worth_it
from checkpoint.restore.watched_phase import (
    Lost,
    answer_of_child,
    confined,
    end_phase,
    ending,
    restorer_said,
    stub_areas,
)

_libc = ctypes.CDLL(None, use_errno=True)

MOST_CALLS = 500_000
"""Calls watched one by one. Of a phase that makes more nobody knows which files it uses: it gets a private view."""
WATCHED_SECONDS = 60.0
"""Likewise where watching takes longer, on a busy machine: the region's own end must not be missed for it."""

_SYSCALL_STOP = signal.SIGTRAP | 0x80
_POLL_SECONDS = 0.0005
_LONGEST_ANSWER = 1 << 22
_SAMPLES, _SHORTEST_PERIOD = 1000, 0.0002
"""Looks at a region, and the least seconds between two of them: a look takes about a tenth of that."""

_TGKILL = call_number("tgkill")
_STOPS = (call_number("kill"), _TGKILL)
_RT_SIGRETURN = call_number("rt_sigreturn")
_PAIRS = ("counts", "seen")
"""Fields that travel as lists of pairs: JSON's keys are strings."""


@dataclass
class RecordedCalls:
    """numbers: every system call the region made. made: how many times in all (`counted` False: at least). opened:
    regular files it opened by their paths for reading. read: of those that it writes, which it may have read as well,
    opened once more. changes_paths: whether it creates, changes or removes files by their paths. deadlines: whether it
    waits until a time that a clock shows, or may. complete: whether it was watched to its end. counted: whether no call
    was let through unseen.

    Without what the stubs around it do: counts, how often it made each call, by number; seen, how often it was found
    at each address, looked at in equal steps of time and never inside a system call."""

    numbers: set[int] = field(default_factory=set)
    made: int = 0
    complete: bool = True
    counted: bool = True
    opened: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    changes_paths: bool = False
    deadlines: bool = False
    counts: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)


def record_calls(
    job: RestoreJob, flat: FlatImage, pages: Path, restorer: Path, *, scratch: Path, cpu: int | None = None
) -> RecordedCalls:
    """Restore the phase once, on processor `cpu` or where this process is, watch it to its region's end, and end it.

    It sees the node's files through a view of its own, as nobody knows yet what it does to them; where this user may
    have none, it may change no file. Raises PhaseFailed, NodeUnfit.
    """
    with tempfile.TemporaryDirectory(prefix=f"calls-{job.phase}-", dir=scratch) as name:
        spec = direct_spec(job, flat, pages, restorer, Path(name), cpu)
        text = answer_of_child(
            lambda writer, parent: _report(
                job, spec, flat.stamps, stub_areas(flat), bool(flat.threads), Path(name), writer, parent
            ),
            _LONGEST_ANSWER,
        )
    answer: dict[str, Any] = (
        strict_json.loads(text) if text else {"failure": "the process that watched its calls ended without an answer"}
    )
    if "refused" in answer:
        raise NodeUnfit(f"phase {job.phase}: its calls could not be watched: {answer['refused']}")
    if "failure" in answer:
        raise PhaseFailed(f"phase {job.phase}: {answer['failure']} while its calls were watched")
    answer |= {name: dict(answer[name]) for name in _PAIRS}
    answer["seen"] = _in_own_vdso(answer["seen"], flat)
    return RecordedCalls(**{**answer, "numbers": set(answer["numbers"])})


def _in_own_vdso(seen: dict[int, int], flat: FlatImage) -> dict[int, int]:
    """Looks that found the region in the node's vDSO, behind the restorer: the run was in the program's own."""
    inside = {at: times for at, times in seen.items() if 0 <= at - flat.header.park < LARGEST_PARK}
    own = [start for start, data in flat.patches if start <= flat.clocks < start + len(data)]
    left = {at: times for at, times in seen.items() if at not in inside}
    return left | ({own[0]: left.get(own[0], 0) + sum(inside.values())} if inside and own else {})


def _report(
    job: RestoreJob,
    spec: dict[str, Any],
    stamps: list[int],
    stubs: list[tuple[int, int]],
    threads: bool,
    folder: Path,
    writer: int,
    parent: int,
) -> NoReturn:
    """In a child of its own: watch the phase and write what was found to `writer`."""
    answer: dict[str, Any] = {"failure": "it failed"}
    try:
        die_with_parent(parent)
        spec["option_bits"] = confined(spec, folder) | Option.STOP_RESTORED
        control = Control(stamps, str(folder))
        watch = _Watch(
            launch(spec, str(folder), control.fd, traced=True),
            (spec["start"], spec["end"]),
            control,
            region_limit(job),
            max(job.expected_seconds / _SAMPLES, _SHORTEST_PERIOD),
            stubs,
            threads,
            [path for _, path in job.written],
        )
        try:
            found = watch.run()
            pairs = {name: sorted(getattr(found, name).items()) for name in _PAIRS}
            answer = {**vars(found), **pairs, "numbers": sorted(found.numbers)}
        finally:
            watch.end()
    except Lost as error:
        answer = {"failure": str(error)}
    except OSError as error:
        answer = {"refused": str(error)}
    finally:
        os.write(writer, strict_json.dumps(answer).encode())
        os._exit(0)


class _Watch:
    def __init__(
        self, pid: int, region: tuple[int, int], control: Control, seconds: float, sampling_period: float,
        stubs: list[tuple[int, int]], threads: bool, written: list[str],
    ) -> None:  # fmt: skip
        self._pid, self._control, self._waits = pid, control, EndlessWait(pid)
        self._start, self._end = region
        self._period, self._stubs = sampling_period, stubs
        self._next_look, self._looking, self._late = 0.0, False, False
        self._filtered, self._threads, self._paths = False, threads, OpenedPaths(pid, written)
        self._called: float | None = None
        self._returned = 0
        self._found = RecordedCalls()
        self._standing = self._restored = self._inside = self._gone = self._ended = False
        self._path: str | None = None
        self._seconds, self._yields = seconds, EndlessYield(pid, seconds)
        self._deadline = time.monotonic() + RESTORE_SECONDS + seconds
        self._watched_until = time.monotonic() + WATCHED_SECONDS

    def run(self) -> RecordedCalls:
        if not os.WIFSTOPPED(self._wait()):
            raise Lost(f"it could not be started ({restorer_said(self._control)})")
        ptrace(PTRACE_SETOPTIONS, self._pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)
        deliver = 0
        while True:
            each = self._standing and self._found.complete and (self._found.counted or self._inside)
            ptrace(PTRACE_SYSCALL if each else PTRACE_CONT, self._pid, 0, deliver)
            status = self._wait()
            deliver = 0
            if not os.WIFSTOPPED(status):
                raise Lost(f"it ended before its region did ({ending(status, self._control)})")
            stopped = os.WSTOPSIG(status)
            if stopped == _SYSCALL_STOP:
                self._at_call()
                self._hurry()
            elif status >> 16 == PTRACE_EVENT_SECCOMP:
                self._inside = False
                if self._found.complete or ctypes.c_long(registers_of(self._pid).orig_rax).value in _STOPS:
                    self._at_call()
            elif stopped == signal.SIGSTOP and not self._standing:
                # Thousands of calls map the memory; what follows are the restorer's last.
                self._standing = self._control.report()[0] == RESTORED
            elif stopped == signal.SIGSTOP:
                if self._control.event(self._end)[0] and (self._ended or not self._looking):
                    if not self._restored:
                        raise Lost("its calls were not seen")
                    return self._result()
                self._look()
            else:
                deliver = stopped

    def _result(self) -> RecordedCalls:
        found, paths = self._found, self._paths
        found.opened, found.read, found.changes_paths = paths.opened, paths.read, paths.changes_paths
        if not found.complete:
            found.changes_paths = found.deadlines = True
            found.counted = False
        return found

    def end(self) -> None:
        """End the phase, if it has not."""
        if not self._gone:
            end_phase(self._pid)

    def _note_end(self, status: int) -> None:
        self._gone = os.WIFEXITED(status) or os.WIFSIGNALED(status)

    def _wait(self) -> int:
        if self._called is not None and not self._inside:
            # A call waits for its watcher: the clock of the looks stands still meanwhile, and none that is overdue
            # comes right behind it, or most would find the phase where a call returns.
            now = time.monotonic()
            self._next_look += now - self._called
            if self._next_look <= now:
                self._next_look = now + random.random() * self._period
            self._called = None
        while True:
            found, status = os.waitpid(self._pid, os.WNOHANG | WALL)
            if found:
                self._note_end(status)
                return status
            now = time.monotonic()
            if self._waits.is_found():
                raise Lost(WAITS_FOR_EVER)
            if now > self._deadline:
                raise Lost("its region did not end")
            # Inside a call the stop might end it early, which the program could see.
            if now >= self._next_look and self._restored and self._found.complete and not self._inside:
                # To the first thread alone: another would stop for good, since only the first is traced.
                _libc.syscall(_TGKILL, self._pid, self._pid, signal.SIGSTOP)
                self._next_look, self._looking, self._late = now + self._period, True, False
            # With a filter in it is stopped for calls to its end.
            time.sleep(0 if self._found.complete or self._filtered else _POLL_SECONDS)

    def _look(self) -> None:
        """Note where the phase is, if it was stopped for that and its region has begun."""
        if self._looking and not self._late and self._control.event(self._start)[0]:
            registers = registers_of(self._pid)
            at = int(registers.rip)
            # Right behind a call it has not gone on yet: with many calls most looks would find it there.
            returned = in_call(registers) if self._filtered else at == self._returned
            if not returned and not self._in_stubs(at):
                self._found.seen[at] = self._found.seen.get(at, 0) + 1
        self._looking = False

    def _in_stubs(self, address: int) -> bool:
        return any(start <= address < end for start, end in self._stubs)

    def _at_call(self) -> None:
        self._inside = not self._inside
        # It may have come here just before it was to be stopped: that look would find it behind the call.
        self._late = True
        if self._inside:
            self._called = time.monotonic()
        registers = registers_of(self._pid)
        number = ctypes.c_long(registers.orig_rax).value
        if not self._restored:
            # The restorer's last calls come first, of which rt_sigreturn is the last.
            self._restored = number == _RT_SIGRETURN and self._control.report()[0] == RESTORED
            if self._restored:
                self._deadline = time.monotonic() + self._seconds
            return
        if number < 0:
            return
        found = self._found
        if self._inside:
            found.numbers.add(number)
            if not self._in_stubs(registers.rip):
                found.counts[number] = found.counts.get(number, 0) + 1
            found.made += 1
            if self._yields.is_found(number):
                raise Lost(WAITS_FOR_EVER)
            found.deadlines |= waits_until(number, registers)
            if number in _STOPS:
                # Its own stop, of which one of ours that is still to come would be a part.
                self._ended = self._control.event(self._end)[0] != 0
            in_time = self._filtered or time.monotonic() < self._watched_until
            found.complete = found.complete and found.made < MOST_CALLS and in_time
            self._path = self._paths.path_of(number, registers)
            return
        self._returned = int(registers.rip)
        if self._path is not None:
            if ctypes.c_long(registers.rax).value >= 0:
                self._paths.note(number, registers, self._path)
            self._path = None

    def _hurry(self) -> None:
        """Behind the last of many calls: be stopped no longer for those that nothing depends on."""
        found = self._found
        if self._inside or self._filtered or not found.complete or not found.made or found.made % FEWEST:
            return
        # A stop that is still to come, its own or ours, would be lost in the midst of it; other threads would make
        # calls that nobody answers.
        if self._ended or self._looking or self._threads or self._yields.made >= FEWEST // 2:
            return
        if not (numbers := worth_it(found.counts, found.made)):
            return
        self._inside = True
        try:
            self._filtered = let_through(self._pid, numbers, self._wait)
        finally:
            self._inside = False
        found.counted = not self._filtered
