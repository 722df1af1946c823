# SPDX-License-Identifier: Apache-2.0
"""The profile: what a tracer found out about one run. Written by any tracer, read by every later stage.

A profile is a .npz file (readable by numpy alone): a JSON header and plain arrays. `docs/profile-format.md` lists
them. The unit of work is named, since tracers measure different things: the native tracer's intervals are lengths
of time, an instruction-exact tracer's are numbers of instructions.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.process.program import Lineage, Program, lineages_from_json, lineages_to_json
from checkpoint.process.team import MOST_SLOTS
from probe.formats.arrays import FloatArray, IntArray, check_archive, write_arrays

FORMAT_VERSION = 1
THREADS_VERSION = 2
"""Of a profile of threads that share the work."""
_MAGIC = "probe profile"
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, EOFError, RuntimeError,
    NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError,
)  # fmt: skip

_ARRAYS = ("counts_", "first_", "blocks_", "executed_", "markers_", "seconds", "thread_work")
_LARGEST, _WIDEST = 1e18, 8
"""Of a number in the header; bytes of a number in an array."""
_SECOND = 10**9


LEAST_COUNTED = 0.5
"""Share of the instructions that must be counted for them to measure work."""

NO_FILE = -1
"""In `BlockTable.image`: code made at run time, or the vDSO. Its addresses are those of the run."""

NO_SITE = -1
"""In `BlockTable.site`: nothing in the block can be counted natively, so that it cannot be a marker."""


@dataclass(frozen=True)
class BlockTable:
    """The blocks behind the columns of a profile: arrays of one length.

    `image` is the position in `Profile.images` or NO_FILE; `site` and `start` are link-time addresses: of the counted
    instruction (or NO_SITE) and of the block's first one; `size` is in bytes, `instructions` a number. The blocks of
    an instruction-exact tracer overlap, and several may have one site.
    """

    image: npt.NDArray[np.int32]
    site: IntArray
    start: IntArray
    size: npt.NDArray[np.int32]
    instructions: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Markers:
    """Blocks that an instruction-exact tracer saw begin soon behind a boundary: arrays of one length.

    Boundary k lies between intervals k - 1 and k; `distance` is the number of instructions from there to the first
    execution of the block of `column`. Ordered by boundary.
    """

    boundary: IntArray
    column: IntArray
    distance: IntArray

    @staticmethod
    def none() -> Markers:
        """Those of a tracer that does not watch: the native one."""
        return Markers(*(np.zeros(0, dtype=np.int64) for _ in range(3)))


_ALLOCATORS_DRAWS = 8
"""Bytes that the C library draws for itself, when memory is first allocated: no order depends on them."""


@dataclass(frozen=True)
class Profile:
    """N intervals of one run. Column j of `counts` belongs to row j of `blocks`.

    counts       N x B sparse, executions in each interval: of each block's site (native) or of the block itself
    seconds      N, time of each interval in the traced run (tracing included)
    cpu_seconds  of the traced run, whole
    images       path and sha256 of every image with blocks
    unit         what the intervals are equal in: "seconds" (native tracer) or "instructions"
    executed     all of the own images' native blocks that ran at least once, also those too hot to count on
    uncounted    paths of images of which nothing was counted, since there was no room for counters in their reach
    written      regular files that the program had open for writing
    prologue     seconds before the traced image started (earlier images of an execve chain); no interval covers them
    exit_status  of the traced run
    processes    other processes that were seen beside the traced one: its children, its wrapper
    helper_threads  threads that were seen beside the first one
    draws        bytes of random numbers that were drawn, the same in every run
    counted_share  share of the own images' instructions that the columns hold: hot blocks may be left out
    first        N x B sparse, the part of `counts` that the marking thread executed, by which boundaries are found;
                 None where no other thread shares its work
    could_mark   threads that could tell places in the first one's stead, where that one did
    thread_work  N x S, instructions that each thread executed in counted blocks, in column 0 the marking one; others in
                 slots, which threads take over from those that have ended. None where one thread works, or older
    """

    program: Program
    tracer: str
    unit: str
    interval: float
    counts: sp.csr_array = field(repr=False)
    seconds: FloatArray = field(repr=False)
    blocks: BlockTable = field(repr=False)
    executed: BlockTable = field(repr=False)
    images: tuple[tuple[str, str], ...]
    cpu_seconds: float
    prologue: float
    removed_sites: int
    installed_sites: int
    install_seconds: float
    written: tuple[str, ...] = ()
    markers: Markers = field(default_factory=Markers.none, repr=False)
    exit_status: int = 0
    processes: int = 0
    helper_threads: int = 0
    draws: int = 0
    counted_share: float = 1.0
    first: sp.csr_array | None = field(default=None, repr=False)
    thread_work: FloatArray | None = field(default=None, repr=False)
    could_mark: tuple[Lineage, ...] = ()
    uncounted: tuple[str, ...] = ()

    @property
    def intervals(self) -> int:
        return len(self.seconds)

    @property
    def thin(self) -> bool:
        """Whether too little was counted to say how much work an interval is."""
        return self.counted_share < LEAST_COUNTED

    @property
    def is_random(self) -> bool:
        """Whether what the program does may depend on random numbers that it drew."""
        return self.draws > _ALLOCATORS_DRAWS

    def vectors(self) -> sp.csr_array:
        """Basic-block vectors, N x B: executions times instructions of the block (SimPoint's weighting)."""
        return sp.csr_array(self.counts.multiply(self.blocks.instructions[None, :].astype(np.float64)))

    def instructions(self) -> FloatArray:
        """Counted instructions per interval, shape (N,): with the native tracer a part of all."""
        return np.asarray(self.counts @ self.blocks.instructions.astype(np.float64), dtype=np.float64)


def save_profile(profile: Profile, path: Path) -> None:
    """Write atomically, readable by the owner alone. Raises StorageError, leaving nothing behind."""
    header = {
        "magic": _MAGIC,
        "format_version": FORMAT_VERSION if profile.first is None else THREADS_VERSION,
        "program": profile.program.to_json(),
        "seed": profile.program.seed,
        "began": list(divmod(profile.program.began, _SECOND)),
        "tracer": profile.tracer,
        "unit": profile.unit,
        "interval": profile.interval,
        "images": [list(i) for i in profile.images],
        "cpu_seconds": profile.cpu_seconds,
        "prologue": profile.prologue,
        "removed_sites": profile.removed_sites,
        "installed_sites": profile.installed_sites,
        "install_seconds": profile.install_seconds,
        "written": list(profile.written),
        "uncounted": list(profile.uncounted),
        "exit_status": profile.exit_status,
        "processes": profile.processes,
        "helper_threads": profile.helper_threads,
        "draws": profile.draws,
        "counted_share": profile.counted_share,
        "intervals": profile.intervals,
        "blocks": len(profile.blocks.site),
    }
    if profile.could_mark:
        header["could_mark"] = lineages_to_json(profile.could_mark)
    arrays: dict[str, Any] = {
        "header": np.frombuffer(strict_json.dumps(header).encode(), dtype=np.uint8),
        "counts_data": profile.counts.data,
        "counts_indices": profile.counts.indices,
        "counts_indptr": profile.counts.indptr,
        "seconds": profile.seconds,
    }
    if profile.first is not None:
        arrays |= {f"first_{part}": getattr(profile.first, part) for part in ("data", "indices", "indptr")}
    if profile.thread_work is not None:
        arrays["thread_work"] = profile.thread_work.ravel()
    for name, table in (("blocks", profile.blocks), ("executed", profile.executed), ("markers", profile.markers)):
        arrays |= {f"{name}_{column}": value for column, value in vars(table).items()}
    write_arrays(path, arrays, "the profile")


def load_profile(path: Path) -> Profile:
    """Read and check a profile. Raises ProbeFileDamaged with the reason."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as stored:
            header = strict_json.loads(bytes(stored["header"]))
            if header.get("magic") != _MAGIC:
                raise ProbeFileDamaged(f"{path}: not a profile")
            if header["format_version"] not in (FORMAT_VERSION, THREADS_VERSION):
                raise ProbeFileDamaged(
                    f"{path}: profile format {header['format_version']}; this version reads {FORMAT_VERSION} and "
                    f"{THREADS_VERSION}"
                )
            return _from_arrays(header, stored)
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such profile") from error
    except ProbeFileDamaged:
        raise
    except _UNREADABLE as error:
        raise ProbeFileDamaged(f"{path}: not a readable profile: {error}; trace the program again") from error


def _from_arrays(header: dict[str, Any], stored: Mapping[str, Any]) -> Profile:
    n, b = _number(header["intervals"], int), _number(header["blocks"], int)
    stored = {name: _array(name, stored[name]) for name in stored if name.startswith(_ARRAYS)}
    counts = _counts(stored["counts_data"], stored["counts_indices"], stored["counts_indptr"], n, b)
    tables = [
        BlockTable(**{c: stored[f"{name}_{c}"] for c in ("image", "site", "start", "size", "instructions")})
        for name in ("blocks", "executed")
    ]
    markers = Markers.none()
    if "markers_boundary" in stored:
        markers = Markers(**{c: stored[f"markers_{c}"] for c in ("boundary", "column", "distance")})
        _check_markers(markers, n, b)
    first = work = None
    if header["format_version"] == THREADS_VERSION:
        work = _thread_work(stored["thread_work"], n) if "thread_work" in stored else None
        first = _counts(stored["first_data"], stored["first_indices"], stored["first_indptr"], n, b)
    seconds = stored["seconds"]
    lengths = [{len(column) for column in vars(table).values()} for table in tables]
    if len(seconds) != n or lengths[0] != {b} or len(lengths[1]) != 1:
        raise ValueError("arrays of different lengths")
    if bad := np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0))).tolist():
        raise ValueError(f"interval {bad[0]} takes {seconds[bad[0]]} seconds ({len(bad)} of {n} are no times)")
    if counts.data.size and counts.data.min() < 0:
        raise ValueError("a block was executed a negative number of times")
    return Profile(
        program=_program(header["program"], header.get("seed", ""), _began(*header.get("began", (0, 0)))),
        tracer=str(header["tracer"]),
        unit=str(header["unit"]),
        interval=_number(header["interval"]),
        counts=counts,
        seconds=seconds,
        blocks=tables[0],
        executed=tables[1],
        images=tuple((str(p), str(h)) for p, h in header["images"]),
        cpu_seconds=_number(header["cpu_seconds"]),
        prologue=_number(header["prologue"]),
        removed_sites=int(_number(header["removed_sites"], int)),
        installed_sites=int(_number(header["installed_sites"], int)),
        install_seconds=_number(header["install_seconds"]),
        written=tuple(str(p) for p in header["written"]),
        markers=markers,
        exit_status=int(header.get("exit_status", 0)),
        processes=int(_number(header.get("processes", 0), int)),
        helper_threads=int(_number(header.get("helper_threads", 0), int)),
        draws=int(_number(header.get("draws", 0), int)),
        counted_share=_number(header.get("counted_share", 1.0)),
        first=first,
        thread_work=work,
        could_mark=lineages_from_json(header.get("could_mark", ())),
        uncounted=tuple(str(p) for p in header.get("uncounted", ())),
    )


def _counts(data: Any, columns: Any, begins: Any, intervals: int, blocks: int) -> sp.csr_array:
    """The table of counts. Checked here: SciPy subtracts numbers as wide as they came, which wrap, and later reads
    outside its arrays."""
    begins = begins.astype(np.int64)
    whole = len(begins) == intervals + 1 and begins[0] == 0 and begins[-1] == len(columns) == len(data)
    if not whole or (np.diff(begins) < 0).any():
        raise ValueError("rows of counts do not follow each other")
    if len(columns) and not 0 <= columns.min() <= columns.max() < blocks:
        raise ValueError("a count of no block")
    counts = sp.csr_array((data, columns, begins), shape=(intervals, blocks))
    counts.check_format(full_check=True)
    return counts


def _thread_work(values: Any, intervals: int) -> FloatArray:
    if not intervals or not len(values) or len(values) % intervals or len(values) // intervals > MOST_SLOTS:
        raise ValueError("work of threads that does not belong to these intervals")
    if not (np.isfinite(values) & (values >= 0) & (values < _LARGEST)).all():
        raise ValueError("a thread's work that is no number of instructions")
    work: FloatArray = values.astype(np.float64).reshape(intervals, -1)
    return work


def _array(name: str, value: Any) -> Any:
    """One array of numbers in one dimension, whatever else may be in such a file."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iuf":
        raise ValueError(f"{name} is no array of numbers")
    if (
        name not in ("seconds", "counts_data", "thread_work") and value.dtype.kind == "f"
    ) or value.dtype.itemsize > _WIDEST:
        raise ValueError(f"{name} holds numbers of another kind")
    return value


def _began(seconds: Any, nanoseconds: Any) -> int:
    return int(_number(seconds, int)) * _SECOND + int(_number(nanoseconds, int))


def _program(value: Any, seed: Any, began: int) -> Program:
    program = replace(Program.from_json(value), seed=seed, began=began)
    words = (
        *program.argv,
        program.executable,
        program.cwd,
        program.stdin,
        program.isa,
        program.seed,
        *program.env,
        *program.env.values(),
    )
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a word of the program's command line or environment is no text")
    return program


def _number(value: Any, kind: type = float) -> Any:
    if type(value) not in (int, kind) or not 0 <= value < _LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is no number of the header")
    return value


def _check_markers(markers: Markers, intervals: int, blocks: int) -> None:
    lengths = {len(values) for values in vars(markers).values()}
    if len(lengths) > 1:
        raise ValueError("arrays of different lengths")
    if lengths != {0} and (
        markers.column.min() < 0 or markers.column.max() >= blocks or markers.boundary.max() > intervals
    ):
        raise ValueError("a marker of no block or boundary")
