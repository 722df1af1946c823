# SPDX-License-Identifier: Apache-2.0
"""Time-independent traces of an application's plan, a file a rank, for SimGrid's `smpirun -replay`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ModelInvalid, StorageError
from probe.models.communication import Collective, Exchange, Grid, size_of
from probe.simulation.plan import Compute, Step, datatype, length, refuse_unfit, transfers, unrolled, values
from reducer.output_file import make_folder

INDEX = "trace.txt"
"""The file that names the ranks' files, in order: what is replayed."""

MOST_LINES = 200_000_000

ANY_SOURCE, RECORDED_ANY_SOURCE = -555, -333
"""What SimGrid replays as a receive from anybody, and what it records (3.32): not the same."""


@dataclass(frozen=True)
class Trace:
    """A trace on disk: the file to replay, and the lines of all ranks."""

    index: Path
    lines: int


def write_trace(steps: tuple[Step, ...], grid: Grid, folder: Path, *, flops_per_second: float = 1e9) -> Trace:
    """Write the traces into a new folder. Computing is written as operations of a host of that speed.

    Raises ModelInvalid and StorageError.
    """
    refuse_unfit(steps, grid)
    expected = size_of(grid) * length(steps)
    if expected > MOST_LINES:
        raise ModelInvalid(f"the trace would have {expected} lines, more than {MOST_LINES}: fewer ranks or turns")
    make_folder(folder)
    try:
        names, lines = [], 0
        for rank in range(size_of(grid)):
            path = folder / f"rank-{rank}.txt"
            with path.open("w") as file:
                for line in rank_lines(steps, rank, grid, flops_per_second):
                    file.write(f"{line}\n")
                    lines += 1
            names.append(path.name)
        index = folder / INDEX
        index.write_text("".join(f"{folder.resolve() / name}\n" for name in names))
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror})") from error
    return Trace(index, lines)


def rank_files(index: Path) -> list[Path]:
    """The files that an index names, from its own folder. Raises ModelInvalid where it is no text, StorageError."""
    try:
        names = [line.strip() for line in index.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"{index}: not text, so no trace") from error
    except OSError as error:
        raise StorageError(
            f"{index}: cannot be read ({error.strerror}); it should name a file for each rank"
        ) from error
    return [index.resolve().parent / name for name in names]


def write_replayable(index: Path, folder: Path) -> Path:
    """An index that SimGrid can replay from anywhere: absolute names, and copies of files that it recorded so that it
    could not read them again. Raises ModelInvalid and StorageError.
    """
    named = []
    try:
        for number, file in enumerate(rank_files(index)):
            text = file.read_text()
            mended = _RECORDED.sub(rf"\g<1>{ANY_SOURCE}", text)
            if mended != text:
                file = folder / f"mended-{number}.txt"
                file.write_text(mended)
            named.append(f"{file}\n")
        made = folder / "index.txt"
        made.write_text("".join(named))
    except OSError as error:
        raise StorageError(f"{index}: cannot be replayed ({error.strerror})") from error
    return made


_RECORDED = re.compile(rf"^(\d+ (?:i?recv|wait|test) ){RECORDED_ANY_SOURCE}(?= )", re.M)


def rank_lines(steps: tuple[Step, ...], rank: int, grid: Grid, flops_per_second: float) -> Iterator[str]:
    """The lines of one rank."""
    yield f"{rank} init"
    for step in unrolled(steps):
        if isinstance(step, Compute):
            yield f"{rank} compute {step.seconds * flops_per_second:.0f}"
        elif isinstance(step, Collective):
            yield f"{rank} {_collective(step)}".rstrip()
        else:
            yield from _exchange(step, rank, grid)
    yield f"{rank} finalize"


def _collective(step: Collective) -> str:
    count, kind = values(step.count, step), datatype(step).number
    if step.kind == "barrier":
        return "barrier"
    if step.kind == "bcast":
        return f"bcast {count} 0 {kind}"
    if step.kind == "reduce":
        return f"reduce {count} 0 0 {kind}"
    if step.kind == "allreduce":
        return f"allreduce {count} 0 {kind}"
    return f"{step.kind} {count} {count} {kind} {kind}"


def _exchange(step: Exchange, rank: int, grid: Grid) -> Iterator[str]:
    coming, going = transfers(step, rank, grid)
    kind = datatype(step).number
    for message in coming:
        yield f"{rank} irecv {message.other} {message.tag} {message.values} {kind}"
    for message in going:
        yield f"{rank} isend {message.other} {message.tag} {message.values} {kind}"
    if coming or going:
        yield f"{rank} waitall {len(coming) + len(going)}"
