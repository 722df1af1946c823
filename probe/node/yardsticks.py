# SPDX-License-Identifier: Apache-2.0
"""Read how fast this node does known work: its processor, second-level cache, last-level cache and memory.

A helper of its own does the work. It waits without using the processor, and ends with whoever started it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("clock", "l2", "llc", "memory")
"""What is read, in order."""

TIMES = 3
"""The median of so many counts: one may be disturbed."""

_KIB, _MIB = 1 << 10, 1 << 20
_PATIENCE = 5.0
"""Seconds for a reading."""


class Yardsticks:
    """A helper on processor `cpu` (None: on any). Nothing is left running after the `with` block.

    Where no helper can be started nothing is read.
    """

    def __init__(self, cpu: int | None) -> None:
        command = [sys.executable, "-I", str(Path(__file__).resolve()), "" if cpu is None else str(cpu)]
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def read(self) -> tuple[float, ...]:
        """CPU seconds of each of NAMES now; () where the helper does not answer, and ever after: a late answer would be
        taken for the next."""
        if self._process is None:
            return ()
        found = self._answer(self._process)
        if len(found) == len(NAMES) and min(found) > 0:
            return found
        self.close()
        return ()

    def _answer(self, process: subprocess.Popen[bytes]) -> tuple[float, ...]:
        """The helper's next line; () where none comes in time."""
        stdin, stdout = process.stdin, process.stdout
        assert stdin and stdout
        with DefaultSelector() as selector:
            selector.register(stdout, EVENT_READ)
            try:
                stdin.write(b"\n")
                stdin.flush()
                line = stdout.readline() if selector.select(_PATIENCE) else b""
                return tuple(float(word) for word in line.split())
            except (OSError, ValueError):
                return ()

    def close(self) -> None:
        """End the helper, whatever it does."""
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def __enter__(self) -> Yardsticks:
        # Until it is ready it works on the processor that is measured.
        self.read()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _works() -> list[Callable[[], None]]:
    """One for each of NAMES, of half a millisecond to one and a half."""
    block = bytes(16 * _KIB)

    def clock() -> None:
        for _ in range(64):
            hashlib.sha256(block)

    return [clock, _copying(256 * _KIB, 128), _copying(4 * _MIB, 8), _parts(32 * _MIB)]


def _copying(size: int, times: int) -> Callable[[], None]:
    """Copy one half of so many bytes to the other."""
    whole = memoryview(bytearray(size))
    source, target = whole[: size // 2], whole[size // 2 :]

    def copy() -> None:
        for _ in range(times):
            target[:] = source

    return copy


def _parts(size: int) -> Callable[[], None]:
    """Copy the next of TIMES parts of so many bytes, which are in no cache."""
    source, target = memoryview(bytearray(size)), memoryview(bytearray(size))
    part, at = size // TIMES, [0]

    def copy() -> None:
        begin = at[0] * part
        target[begin : begin + part] = source[begin : begin + part]
        at[0] = (at[0] + 1) % TIMES

    return copy


def _count(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(TIMES):
        before = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
        work()
        seconds.append(time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - before)
    return statistics.median(seconds)


def main() -> None:
    """Answer each line of input with a reading, on processor argv[1] if that is given."""
    if sys.argv[1]:
        os.sched_setaffinity(0, {int(sys.argv[1])})
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    works = _works()
    for work in works * TIMES:
        # The first copies make the pages.
        work()
    for _ in sys.stdin.buffer:
        print(*(f"{_count(work):.9f}" for work in works), flush=True)


if __name__ == "__main__":
    main()
