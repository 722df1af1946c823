# SPDX-License-Identifier: Apache-2.0
"""Wait for a process: its state, CPU time and memory by its number; the signal of its end held back meanwhile."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.002
_ASLEEP = ("S", "t", "T", "")
_FLAGS_FIELD, _SIGNALED = 6, 0x400
"""Where /proc/PID/stat has flags, behind the name; PF_SIGNALED."""


@contextlib.contextmanager
def child_signals_blocked() -> Iterator[None]:
    """SIGCHLD held back, so that waiting with a time limit mostly wakes at once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def process_state(pid: int) -> str:
    """The one-letter state of a process from /proc/PID/stat; "" where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


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
        with open(f"/proc/{pid}/status") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) * 1024
    except OSError:
        return 0


def is_killed(pid: int, number: int) -> bool:
    """Whether a thread that ends does so because its whole process ends, or is replaced."""
    with open(f"/proc/{pid}/task/{number}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return bool(int(fields[_FLAGS_FIELD]) & _SIGNALED)


def is_about_to_be_killed(number: int) -> bool:
    """Whether SIGKILL waits for a thread, which stands at a stop: its whole process ends."""
    with open(f"/proc/{number}/status") as file:
        pending = next((line.split()[1] for line in file if line.startswith("SigPnd:")), "0")
    return bool(int(pending, 16) >> (signal.SIGKILL - 1) & 1)


def threads_of(pid: int) -> set[int]:
    """Numbers of all threads of a process, the first among them. Raises OSError where it is gone."""
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}
