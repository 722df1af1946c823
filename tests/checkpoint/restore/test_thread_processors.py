# SPDX-License-Identifier: Apache-2.0
"""Restored threads begin on a processor each, and may go wherever the program's might from then on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from direct_runs import flat_job
from programs import build
from regions import captured_regions

from checkpoint import linux
from checkpoint.binary.syscall_names import call_number
from checkpoint.compiled import restorer
from checkpoint.flat.control import Option
from checkpoint.process.children import event_message, reap, reap_threads
from checkpoint.process.ptrace import ptrace, registers_of
from checkpoint.process.waiting import last_processor
from checkpoint.restore.direct_agent import Control, launch
from checkpoint.restore.direct_restore import direct_spec

SECONDS = 30.0
CALL = signal.SIGTRAP | 0x80
OURS = os.sched_getaffinity(0)


class Placed(NamedTuple):
    """A call for a thread, with the processors that it may use from then on; where all threads are at that moment."""

    number: int
    allowed: set[int]
    standing: dict[int, int]


class Threads:
    """The threads of a restorer that stands at its execve, traced."""

    def __init__(self, pid: int) -> None:
        wanted = linux.PTRACE_O_EXITKILL | linux.PTRACE_O_TRACECLONE | linux.PTRACE_O_TRACESYSGOOD
        ptrace(linux.PTRACE_SETOPTIONS, pid, 0, wanted)
        self.first = pid
        self._inside = {pid: False}

    def placed(self) -> Iterator[Placed]:
        """Each call of sched_setaffinity, until the region ends."""
        ptrace(linux.PTRACE_SYSCALL, self.first)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for number in list(self._inside):
                found, status = os.waitpid(number, linux.WALL | os.WNOHANG)
                if not found:
                    continue
                if not os.WIFSTOPPED(status) or (os.WSTOPSIG(status) == signal.SIGSTOP and number == self.first):
                    return
                if os.WSTOPSIG(status) == CALL:
                    self._inside[number] = not self._inside[number]
                    registers = registers_of(number)
                    if self._inside[number] and registers.orig_rax == call_number("sched_setaffinity"):
                        allowed = processors_in(number, registers.rdx, registers.rsi)
                        yield Placed(registers.rdi or number, allowed, self._standing())
                elif status >> 16 == linux.PTRACE_EVENT_CLONE:
                    self._inside[event_message(number)] = False
                ptrace(linux.PTRACE_SYSCALL, number)
        raise AssertionError("the region did not end")

    def _standing(self) -> dict[int, int]:
        """The processor of each thread."""
        return {number: last_processor(number) for number in self._inside}


def processors_in(number: int, address: int, size: int) -> set[int]:
    """Those of a mask in the memory of a thread."""
    with open(f"/proc/{number}/mem", "rb", buffering=0) as memory:
        bits = int.from_bytes(os.pread(memory.fileno(), size, address), "little")
    return {at for at in range(bits.bit_length()) if bits >> at & 1}


@contextmanager
def traced_restorer(folder: Path, scratch: Path, cpu: int, options: int = 0) -> Iterator[Threads]:
    (job,) = captured_regions(
        build("team", folder), "60", "barrier", "2", folder=scratch / "of", direct=True, threads=2
    )
    flat = flat_job(job, scratch)
    own = scratch / "own"
    own.mkdir()
    spec = direct_spec(job, flat, job.images / "pages-1.img", restorer(), own, cpu)
    spec["option_bits"] = Option.FILTER_CALLS | Option.CONFINE_WRITES | Option.ANY_FOLDER | options
    control = Control(flat.stamps, str(own))
    pid = launch(spec, str(own), control.fd, traced=True)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, linux.WALL)[1])
        yield Threads(pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        reap_threads(pid)
        reap(pid)
        control.close()


@pytest.mark.skipif(len(OURS) < 2, reason="two threads share one processor here")
def test_each_thread_begins_on_a_processor_of_its_own(builds: Path, tmp_path: Path) -> None:
    """The kernel would put both on the same for some milliseconds of the region. Before the region begins each may go
    anywhere again: a program that asks how many processors it has is told the truth."""
    with traced_restorer(builds, tmp_path, max(OURS)) as threads:
        placed = list(threads.placed())
    apart, anywhere = placed[:2], placed[2:]
    # The first thread goes where the other is to begin, and comes back.
    assert [call.number for call in apart] == [threads.first] * 2
    first, second = (call.allowed for call in apart)
    assert (len(first), len(second)) == (1, 1) and first != second
    assert len(anywhere) == len({call.number for call in anywhere}) == 2
    assert all(call.allowed == first | second for call in anywhere)
    assert set(anywhere[0].standing.values()) == first | second, "both wait on one processor"


@pytest.mark.skipif(len(OURS) < 2, reason="two threads share one processor here")
def test_it_stays_there_where_the_agent_lets_it_go(builds: Path, tmp_path: Path) -> None:
    with traced_restorer(builds, tmp_path, max(OURS), Option.STAY_APART) as threads:
        first, second = (call.allowed for call in threads.placed())
    assert len(first) == len(second) == 1 and first != second
