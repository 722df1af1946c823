# SPDX-License-Identifier: Apache-2.0
"""Wait for a process: its state, CPU time and memory by its number; the signal of its end held back meanwhile.

Tell a restored phase that nobody can wake. A thread that sleeps while others compute is left out of a checkpoint. Where
the first one hands over to it all the same, and waits, the phase would be given up minutes later. Python 3.8, standard
library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from checkpoint.binary.syscall_names import call_number

WAITS_FOR_EVER = "it waits for a thread that is not restored with it"

_PATIENCE_SECONDS, _LOOK_SECONDS, _LATE_SECONDS = 1.0, 0.2, 0.5
_SCHED_YIELD, _YIELDS, _YIELDING = call_number("sched_yield"), 1000, 0.02
"""Calls between two looks; share of a region's limit, which is a multiple of what it took, that it may yield for."""
_FUTEX = str(call_number("futex"))
_COMMANDS, _WAIT, _WAIT_BITSET = 0x7F, 0, 9
"""FUTEX_CMD_MASK, FUTEX_WAIT, FUTEX_WAIT_BITSET of futex(2)."""
ENDED = "Z"
"""State of a process that has ended, and that its parent has not waited for."""
_OF_TIMERS = sum(1 << one - 1 for one in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF))
_POLL_SECONDS = 0.002
_ASLEEP = ("S", "t", "T", "")
_STATE, _PARENT, _FLAGS, _PROCESSOR = 0, 1, 6, 36
"""Places in /proc/PID/stat, behind the name: fields 3, 4, 9 and 39 of proc(5)."""
_EXITING, _SIGNALED = 0x4, 0x400
"""PF_EXITING, PF_SIGNALED."""


@contextlib.contextmanager
def child_signals_blocked() -> Iterator[None]:
    """SIGCHLD held back, so that waiting with a time limit mostly wakes at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stat_fields(pid: int | str) -> list[str]:
    """What /proc/PID/stat says behind the name, from field 3 of proc(5) on; also of PID/task/TID. Raises OSError.

    The name may hold any bytes: the kernel cuts it within a character.
    """
    with open(f"/proc/{pid}/stat", errors="surrogateescape") as file:
        return file.read().rpartition(")")[2].split()


def status_of(pid: int | str) -> dict[str, str]:
    """/proc/PID/status by its names; also of PID/task/TID. Raises OSError."""
    with open(f"/proc/{pid}/status", errors="surrogateescape") as file:
        parts = (line.partition(":") for line in file.read().split("\n"))
        return {name: value.strip() for name, _, value in parts}


def process_state(pid: int) -> str:
    """The one-letter state of a process from /proc/PID/stat; "" where it is gone."""
    try:
        return stat_fields(pid)[_STATE]
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The number of its parent. Raises OSError where it is gone."""
    return int(stat_fields(pid)[_PARENT])


def last_processor(pid: int | str) -> int:
    """The processor that a process, or PID/task/TID, ran on last. Raises OSError where it is gone."""
    return int(stat_fields(pid)[_PROCESSOR])


def awake(numbers: Iterable[int]) -> int:
    """How many of these processes or threads compute at this moment, or wait for a disk: any state but asleep."""
    return sum(process_state(number) not in _ASLEEP for number in list(numbers))


def reaches_state(pid: int, state: str, seconds: float) -> bool:
    """Wait until a process is in the one-letter `state`; whether it is within so many seconds."""
    deadline = time.monotonic() + seconds
    while process_state(pid) != state:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def process_cpu(pid: int) -> float:
    """CPU seconds of another process so far (clock_getcpuclockid(3): its number, inverted, in the clock's)."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_resident(pid: int) -> int:
    """Bytes of memory that a process had at its fullest (VmHWM in /proc/PID/status); 0 where it is gone."""
    try:
        return int(status_of(pid).get("VmHWM", "0").split()[0]) * 1024
    except OSError:
        return 0


def is_killed(pid: int, number: int) -> bool:
    """Whether a thread that ends does so because its whole process ends, or is replaced."""
    return bool(int(stat_fields(f"{pid}/task/{number}")[_FLAGS]) & _SIGNALED)


def goes_on(pid: int, number: int) -> bool:
    """Whether a thread is neither told to end with its process, nor ending."""
    thread = f"{pid}/task/{number}"
    try:
        status, flags = status_of(thread), int(stat_fields(thread)[_FLAGS])
    except OSError:
        return False
    return not (_is_killed_by(status) or flags & (_EXITING | _SIGNALED) or status["State"].startswith(("Z", "X")))


def is_about_to_be_killed(number: int) -> bool:
    """Whether SIGKILL waits for a thread, which stands at a stop: its whole process ends."""
    return _is_killed_by(status_of(number))


def _is_killed_by(status: dict[str, str]) -> bool:
    return bool(int(status.get("SigPnd", "0"), 16) >> (signal.SIGKILL - 1) & 1)


def is_ending(pid: int, number: int) -> bool:
    """Whether a thread that was stopped no longer is, since its process was killed."""
    try:
        return process_state(number) != "t" or is_killed(pid, number) or is_about_to_be_killed(number)
    except OSError:
        return True


def threads_of(pid: int) -> set[int]:
    """Numbers of all threads of a process, the first among them. Raises OSError where it is gone."""
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}


class EndlessWait:
    """Looks at process `pid`, now and then, however often it is asked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = 0.0
        self._said, self._since = "", 0.0

    def is_found(self) -> bool:
        """Whether it has been in the same wait without an end for a second, and has no other thread."""
        now = time.monotonic()
        if now < self._looked + _LOOK_SECONDS:
            return False
        said = _endless_wait(self._pid)
        # Whoever has not asked for long had other things to do: with the process itself, that went on.
        if not said or said != self._said or now > self._looked + _LATE_SECONDS:
            self._said, self._since = said, now
        self._looked = now
        return bool(said) and now - self._since >= _PATIENCE_SECONDS


class EndlessYield:
    """Told of each call of process `pid`, whose region is given up after `limit` seconds. `made`: how often it has
    called sched_yield(2) since it last made another call."""

    def __init__(self, pid: int, limit: float) -> None:
        self._pid, self._patience = pid, _PATIENCE_SECONDS + _YIELDING * limit
        self.made, self._since = 0, 0.0

    def is_found(self, number: int) -> bool:
        """Whether it has done nothing but let others go first for more than a second, and there are none: it waits for
        what a thread does that it no longer has."""
        if number != _SCHED_YIELD:
            self.made = 0
            return False
        self._since = self._since if self.made else time.monotonic()
        self.made += 1
        if self.made % _YIELDS or time.monotonic() < self._since + self._patience:
            return False
        try:
            return is_left_alone(self._pid)
        except OSError:
            return False


def _endless_wait(pid: int) -> str:
    """The only thread's futex(2) without a time limit, as /proc/PID/syscall shows it; "" for all else.

    A handler may wake the thread, and then it waits on as if nothing had been: one for a timer's signal counts as all
    else. Nobody but the program itself sends it others.
    """
    try:
        said = Path(f"/proc/{pid}/syscall").read_text()
        call = said.split()
        if len(call) < 5 or call[0] != _FUTEX or int(call[2], 16) & _COMMANDS not in (_WAIT, _WAIT_BITSET):
            return ""
        # In a process namespace whose own /proc could not be mounted the number is somebody else's.
        if int(call[4], 16) or os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 (Python 3.8 has no other)
            return ""
        return said if is_left_alone(pid) else ""
    except OSError:
        # It is gone, or this user may not look.
        return ""


def is_left_alone(pid: int) -> bool:
    """Whether a process has one thread, and no handler for a timer's signals: nothing then changes what the thread
    waits for. Raises OSError where it is gone, or this user may not look."""
    if len(list(Path(f"/proc/{pid}/task").iterdir())) != 1:
        return False
    caught = status_of(pid).get("SigCgt")
    return caught is not None and not int(caught, 16) & _OF_TIMERS
