# SPDX-License-Identifier: Apache-2.0
"""Make a profile from what an instruction-exact tool recorded.

The tool's blocks are the columns, all of them. Native runs count at sites (`checkpoint.binary.sites`): an instruction
that can be displaced. A block in which one lies can be a marker, by that site; the site's executions are those of *all*
blocks that cover it, since blocks of such tools overlap (`probe.pipeline.runs.boundaries`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.sites import find_sites
from checkpoint.errors import ProbeError, ProgramNotRunnable, ProgramTooShort, ProgramUnsupported, StorageError
from checkpoint.process.descriptors import written_files
from checkpoint.process.exit_status import exit_status, refuse_failed
from checkpoint.process.maps import is_own
from checkpoint.process.plain_run import PlainRun
from checkpoint.process.program import Program, Streams
from probe.formats.arrays import BoolArray, IntArray
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import NO_FILE, NO_SITE, BlockTable, Markers, Profile
from probe.tracers.stream import Ending, Origin, Recorded
from probe.tracers.too_few import why_too_few_instructions

DEFAULT_INTERVAL = 100_000_000
SHORTEST_INTERVAL = 100_000
FEWEST_INTERVALS = 5
SLACK = 0.01
"""Share of an interval behind its beginning in which marker candidates are looked for."""

TOOL_FAILED = 125
"""Exit status of a program whose tool could not go on (FAILED in the tools)."""

TEMPORARY = "probe-trace-"
"""How the names of the folders begin that tools write to while they trace."""

_OF_TOOLS = (f"/{TEMPORARY}", "/valgrind_proc_")
"""Parts of the paths that tools write to; Valgrind keeps what the program is to find in /proc in files of its own."""

Ints32 = npt.NDArray[np.int32]

_ADVICE = {
    Ending.THREAD_STARTED: (
        "started a thread", "run it with one thread (an option of its own, or OMP_NUM_THREADS=1)",
    ),
    Ending.CHILD_STARTED: ("started a child process", "probe the worker program itself instead of its wrapper"),
}  # fmt: skip


def refuse_others(program: Program, ending: Ending | None) -> None:
    """Raise ProgramUnsupported where the tool ended the run because of a second thread or process."""
    if ending in _ADVICE:
        what, advice = _ADVICE[ending]
        raise ProgramUnsupported(
            f"{program.argv[0]}: {what}; a probe holds one process with one thread. To go on, {advice}."
        )


class Recorder(Protocol):
    """Runs a program under a tool: what that recorded, and what the run took. `look` as in `run_plain`."""

    def __call__(
        self,
        program: Program,
        *,
        interval: int,
        streams: Streams,
        cpu: int | None = None,
        look: Callable[[int], None] | None = None,
    ) -> tuple[Recorded, PlainRun]: ...


def trace_with(
    record: Recorder,
    program: Program,
    *,
    tracer: str,
    interval: int = DEFAULT_INTERVAL,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Profile:
    """The profile of one run under a tool. `interval` in instructions; `progress` is told the seconds traced so far.

    Raises ProbeError for too short an interval, ProgramTooShort, and what `record` raises: ToolMissing,
    PrivilegeMissing, ProgramUnsupported (threads, children, 32-bit code), ProgramFailed, StorageError (disk full).
    """
    if interval < SHORTEST_INTERVAL:
        raise ProbeError(f"--interval: {interval:,} instructions are less than the tracer's {SHORTEST_INTERVAL:,}")
    begun = time.monotonic()
    written: set[str] = set()

    def look(pid: int) -> None:
        written.update(written_files(pid))
        if progress:
            progress(time.monotonic() - begun)

    recorded, run = record(program, interval=interval, streams=streams, cpu=cpu, look=look)
    ours = {str(streams.stdout), str(streams.stderr)}
    files = tuple(sorted(p for p in written - ours if not any(part in p for part in _OF_TOOLS)))
    code = exit_status(program, run.status, streams)
    if recorded.counts.shape[0] < FEWEST_INTERVALS:
        refuse_failed(program, code, streams)
        raise ProgramTooShort(
            f"{program.argv[0]} ran for {run.wall:.3f} s under the tool and executed {int(recorded.lengths.sum()):,} "
            f"instructions: {recorded.counts.shape[0]} intervals of {recorded.interval:,}, at least "
            f"{FEWEST_INTERVALS} are needed. {why_too_few_instructions(run, streams)}"
        )
    profile = profile_of(program, recorded, tracer=tracer, cpu_seconds=run.cpu, written=files)
    return replace(profile, exit_status=code)


def client_command(program: Program) -> list[str]:
    """The program's command line for a tool that looks for it in PATH: by its name, if that finds the same."""
    same = shutil.which(program.argv[0], path=program.env.get("PATH", os.defpath)) == program.executable
    return [program.argv[0] if same else program.executable, *program.argv[1:]]


def refuse_unwritten(recorded: Recorded | None, status: int, streams: Streams) -> None:
    """Raise StorageError where the tool ended the run since it could not write. What it said may be lost likewise."""
    whole = recorded is not None and recorded.ending is not None
    if not whole and os.WIFEXITED(status) and os.WEXITSTATUS(status) == TOOL_FAILED:
        raise StorageError(f"{streams.stdout.parent}: the trace could not be written; is the disk full?")


@dataclass
class _Table:
    """The columns of a profile as they are filled in, image by image."""

    image: Ints32
    start: IntArray
    site: IntArray
    images: list[tuple[str, str]] = field(default_factory=list)
    executed: list[tuple[int, IntArray, IntArray, Ints32, Ints32]] = field(default_factory=list)


def profile_of(
    program: Program, recorded: Recorded, *, tracer: str, cpu_seconds: float, written: tuple[str, ...]
) -> Profile:
    """The profile of a whole run."""
    ran = np.asarray(recorded.counts.sum(axis=0)).ravel() > 0
    table = _Table(
        np.full(len(ran), NO_FILE, dtype=np.int32), recorded.offset.copy(), np.full(len(ran), NO_SITE, dtype=np.int64)
    )
    for number, (path, origin) in enumerate(recorded.images):
        _add_image(table, recorded, number, path, origin)
    column = np.full(len(ran), -1, dtype=np.int64)
    column[ran] = np.arange(int(ran.sum()))
    candidates = recorded.candidates
    placed = column[candidates.block] >= 0
    return Profile(
        program=program,
        tracer=tracer,
        unit=INSTRUCTIONS,
        interval=recorded.interval,
        counts=sp.csr_array(recorded.counts[:, ran]),
        seconds=np.maximum(recorded.seconds, 1e-9),
        blocks=BlockTable(
            table.image[ran], table.site[ran], table.start[ran], recorded.size[ran], recorded.instructions[ran]
        ),
        executed=_joined(table.executed),
        images=tuple(table.images),
        cpu_seconds=cpu_seconds,
        prologue=0.0,
        removed_sites=0,
        installed_sites=int(ran.sum()),
        install_seconds=0.0,
        written=written,
        markers=Markers(candidates.boundary[placed], column[candidates.block[placed]], candidates.distance[placed]),
    )


def _add_image(table: _Table, recorded: Recorded, number: int, path: str, origin: Origin) -> None:
    """Fill in the blocks of one image. One that cannot be read any more is code without a file."""
    mine = np.flatnonzero(recorded.image == number)
    try:
        image = read_image(path)
    except ProgramNotRunnable:
        return
    start = recorded.offset[mine]
    if origin is Origin.FILE_OFFSET:
        start, found = _link_addresses(image, start)
        mine, start = mine[found], start[found]
    table.image[mine], table.start[mine] = len(table.images), start
    table.images.append((path, image.sha256))
    if is_own(path):
        _add_sites(table, image, mine, start, recorded.size[mine].astype(np.int64))


def _link_addresses(image: ElfImage, offsets: IntArray) -> tuple[IntArray, BoolArray]:
    """Link-time addresses of offsets in the file, and which of them lie in code."""
    addresses, found = offsets.copy(), np.zeros(len(offsets), dtype=bool)
    for segment in image.segments:
        if segment.executable:
            inside = (offsets >= segment.offset) & (offsets < segment.offset + segment.size)
            addresses[inside] = offsets[inside] - segment.offset + segment.vaddr
            found |= inside
    return addresses, found


def _add_sites(table: _Table, image: ElfImage, mine: IntArray, start: IntArray, size: IntArray) -> None:
    """Each block's first site, and the native blocks that ran."""
    sites = find_sites(image)
    if not len(sites) or not len(mine):
        return
    first = np.minimum(np.searchsorted(sites.offset, start), len(sites) - 1)
    inside = (sites.offset[first] >= start) & (sites.offset[first] + sites.length[first] <= start + size)
    table.site[mine[inside]] = sites.offset[first[inside]]
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate((start + size)[order])
    before = np.searchsorted(start[order], sites.block_start, side="right") - 1
    ran = np.flatnonzero((before >= 0) & (reach[before] > sites.block_start))
    table.executed.append(
        (
            len(table.images) - 1, sites.offset[ran], sites.block_start[ran], sites.block_bytes[ran],
            sites.block_instructions[ran],
        )
    )  # fmt: skip


def _joined(parts: list[tuple[int, IntArray, IntArray, Ints32, Ints32]]) -> BlockTable:
    columns: list[list[npt.NDArray[Any]]] = [[part[k] for part in parts] for k in range(1, 5)]  # type: ignore[misc]
    site, start, size, instructions = (np.concatenate(c) if c else np.zeros(0) for c in columns)
    return BlockTable(
        image=np.repeat([p[0] for p in parts], [len(p[1]) for p in parts]).astype(np.int32),
        site=site.astype(np.int64),
        start=start.astype(np.int64),
        size=size.astype(np.int32),
        instructions=instructions.astype(np.int32),
    )
