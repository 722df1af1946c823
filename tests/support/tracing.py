# SPDX-License-Identifier: Apache-2.0
"""Runs of the test programs under the counting stubs, for comparison with plain runs and with the truth."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoint.binary.elf import read_image
from checkpoint.binary.sites import SiteTable
from checkpoint.linux import PTRACE_SINGLESTEP, WALL
from checkpoint.process.loader import LoadWatch
from checkpoint.process.program import Program, Streams, resolve_program
from checkpoint.process.tracee import Occurrence, Tracee, What
from checkpoint.stubs.counters import CountedImage, SiteCounters
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet
from probe.formats.arrays import IntArray
from probe.tracers.stream import Recorded
from probe.tracers.valgrind import record

SECONDS = 30.0
"""No test program runs longer than a part of this; a test that waits for more has failed."""


SESSION_VARIABLE = "PROBE_TEST_SESSION"
"""In the environment of everything a test starts, so that strays are found wherever they were re-parented to."""


@dataclass(frozen=True)
class Ended:
    """A finished run: what it wrote and its status as subprocess reports it."""

    stdout: str
    stderr: str
    status: int


@contextmanager
def streams_of(folder: Path | None = None) -> Iterator[Streams]:
    """Empty files for the output of one run."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        yield Streams(Path(made) / "stdout", Path(made) / "stderr")


def program_of(path: Path, *arguments: str, stdin: str = "/dev/null") -> Program:
    """As the tests' plain runs: a fixed small environment."""
    env = {"PATH": os.defpath, "LC_ALL": "C"}
    env |= {k: v for k, v in os.environ.items() if k == SESSION_VARIABLE}
    return resolve_program([str(path), *arguments], stdin=stdin, env=env)


def ended(streams: Streams, status: int) -> Ended:
    return Ended(streams.stdout.read_text(), streams.stderr.read_text(), os.waitstatus_to_exitcode(status))


@dataclass(frozen=True)
class Counted:
    """One traced run: the counters as they were when the program was about to exit."""

    end: Ended
    images: list[CountedImage]
    counts: IntArray
    installed: list[int]

    def image(self, path: Path) -> tuple[SiteTable, IntArray]:
        """Sites of the image at `path` and the executions of each."""
        found = next(i for i in self.images if Path(i.path) == path.resolve())
        return found.sites, self.counts[found.first : found.first + len(found.sites)]

    def executions(self, path: Path, address: int) -> int | None:
        """Executions of the block that holds the instruction at `address`; None where it is not counted."""
        sites, counts = self.image(path)
        held = (sites.block_start <= address) & (address < sites.block_start + sites.block_bytes)
        found = counts[held]
        assert len(found) <= 1, "blocks overlap"
        return int(found[0]) if len(found) else None


def count_run(
    program: Program,
    *,
    while_running: Callable[[Tracee, SiteCounters], Occurrence | None] | None = None,
    every: float = 0.01,
    copied: bool = False,
) -> Counted:
    """Run `program` with a counter at every site, to its end; `copied`: inner loops by copies of them.

    `while_running` is called every `every` seconds with the process running. Where it waited for a stop, it returns
    that stop with the process still there: the stop asked for, or the end of the program, which may come first.
    """
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        watch, counters = LoadWatch(tracee), SiteCounters(tracee)
        watch.arm()
        installed = [counters.install(i) for i in watch.new_images()]
        if copied:
            counters.copy_loops(np.arange(counters.columns))
            assert (counters.copies > 0).any()
        tracee.resume()
        while True:
            occurrence = tracee.wait(every if while_running else SECONDS)
            if occurrence.what is What.TIMEOUT:
                assert while_running, "the program hangs"
                left_at = while_running(tracee, counters)
                if left_at is None:
                    continue
                occurrence = left_at
            if occurrence.what is What.EXITING:
                counts = counters.read()
                tracee.resume()
                last = tracee.wait(SECONDS)
                assert last.what is What.ENDED
                return Counted(ended(streams, last.status), counters.images, counts, installed)
            if occurrence.what is What.BREAKPOINT:
                watch.step_over()
                installed += [counters.install(i) for i in watch.new_images()]
                counters.forget_unmapped(watch.known())
            elif occurrence.what is What.EXECUTED:
                tracee.run_to_entry()
                watch, counters = LoadWatch(tracee), SiteCounters(tracee)
                watch.arm()
                installed += [counters.install(i) for i in watch.new_images()]
            tracee.resume()


@dataclass(frozen=True)
class Marked:
    """A process with markers, as `marked` makes it."""

    tracee: Tracee
    watch: LoadWatch
    markers: MarkerSet
    streams: Streams


def compile_small(folder: Path, name: str, source: str, *flags: str) -> Path:
    """A program of one test's own, from C source."""
    (folder / f"{name}.c").write_text(source)
    command = ["cc", "-O2", "-Wall", "-Werror", "-fPIE", "-pie", *flags, "-o", name, f"{name}.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / name


def single_step(tracee: Tracee) -> None:
    """Execute one instruction of the stopped process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_SINGLESTEP, tracee.pid, None, None) == 0
    _, status = os.waitpid(tracee.pid, WALL)
    assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTRAP, status


def to_exit(tracee: Tracee, watch: LoadWatch, markers: MarkerSet) -> None:
    """Let the stopped process run to its exit event; markers of libraries are installed on the way."""
    while True:
        tracee.resume()
        occurrence = tracee.wait(SECONDS)
        if occurrence.what is What.EXITING:
            return
        assert occurrence.what is What.BREAKPOINT, occurrence
        watch.step_over()
        markers.install_new(watch)


@contextmanager
def marked(program: Program, wanted: Mapping[Marker, Sequence[Event]]) -> Iterator[Marked]:
    """A process at its entry point with its markers installed, and killed at the end."""
    with streams_of() as streams, Tracee.start(program, streams) as tracee:
        watch, markers = LoadWatch(tracee), MarkerSet(tracee, wanted)
        watch.arm()
        markers.install_new(watch)
        yield Marked(tracee, watch, markers, streams)


INTERVAL = 100_000


@dataclass(frozen=True)
class Traced:
    """One run under the tool: what was recorded and what the program printed."""

    recorded: Recorded
    stdout: str

    def totals(self) -> np.ndarray:
        return np.asarray(self.recorded.counts.sum(axis=0)).ravel()

    def link_addresses(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """Columns of the blocks of one image, and their link-time addresses."""
        number = [name for name, _ in self.recorded.images].index(str(path.resolve()))
        mine = np.flatnonzero(self.recorded.image == number)
        segment = next(s for s in read_image(str(path)).segments if s.executable)
        return mine, self.recorded.offset[mine] - segment.offset + segment.vaddr

    def executions(self, path: Path, address: int) -> int:
        """Executions of one instruction: of all blocks that cover it."""
        mine, start = self.link_addresses(path)
        covering = (start <= address) & (address < start + self.recorded.size[mine])
        return int(self.totals()[mine[covering]].sum())


def recorded_run(program: Program, interval: int = INTERVAL) -> Traced:
    with streams_of() as streams:
        recorded, _ = record(program, interval=interval, streams=streams)
        return Traced(recorded, streams.stdout.read_text())
