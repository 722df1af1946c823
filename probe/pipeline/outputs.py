# SPDX-License-Identifier: Apache-2.0
"""The output of a run and the files that it wrote, beside those of plain runs.

Programs print times, sizes and process numbers, and a traced process is larger than a plain one. So output that differs
is a hint and never refuses a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkpoint import strict_json
from checkpoint.errors import StorageError
from checkpoint.process.program import Streams
from probe.node.files import file_sha256

_NUMBERS = re.compile(rb"[0-9]+(?:[.:,][0-9]+)*")
KEPT_START = 64 << 20
"""Bytes of an output that stay, and are compared."""

KEPT_END = 1 << 20
"""Bytes at its end that stay too: where a program fails, it says why there."""

_LOOK_SECONDS = 0.25
_LEAST_HOLE, _LEAST_HOLE_IN_UNREAD = 16 << 20, 1 << 20
"""Bytes that are worth a hole, also in an output that nothing reads."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h

# Loaded before anything is forked.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

_PIECE = 1 << 20
_LARGEST_WRITTEN = 4 << 30
_TOO_LARGE = "too large"


@dataclass(frozen=True)
class Compared:
    """A run beside plain runs. Notes: what differs harmlessly, or could not be compared; warnings: what else differs.

    Neither refuses a program: the counts at markers tell whether a run repeated itself (probe/pipeline/validate.py).
    """

    notes: list[str]
    warnings: list[str]

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.notes + other.notes, self.warnings + other.warnings)


def compare_outputs(plain: Sequence[Streams], run: Streams, what: str) -> Compared:
    """Compare what `run` printed with what the plain runs did. Raises StorageError where an output is gone."""
    compared = Compared([], [])
    for name in ("stdout", "stderr"):
        references = [getattr(s, name) for s in plain]
        missing = next((p for p in (*references, getattr(run, name)) if not p.is_file()), None)
        if missing is not None:
            raise StorageError(f"{missing}: the output of a run is gone; build without --resume")
        compared += _compare(references, getattr(run, name), f"{what}: {name}")
    return compared


def _compare(references: Sequence[Path], other: Path, what: str) -> Compared:
    first = references[0]
    if any(p.stat().st_size > KEPT_START for p in (*references, other)):
        return Compared([_compare_starts([*references, other], what)], [])
    agree = all(filecmp.cmp(first, r, shallow=False) for r in references[1:])
    if agree and filecmp.cmp(first, other, shallow=False):
        return Compared([], [])
    texts = [p.read_bytes().splitlines() for p in references]
    got = other.read_bytes().splitlines()
    lengths = sorted({len(t) for t in texts})
    if len(lengths) > 1:
        return Compared([f"{what}: even its length differs between plain runs; not compared"], [])
    if len(got) != lengths[0]:
        return Compared(
            [], [f"{what} has {len(got)} lines where plain runs have {lengths[0]} ({first} against {other})"]
        )
    return _by_line(list(zip(*texts, strict=True)), got, what)


def _compare_starts(paths: Sequence[Path], what: str) -> str:
    """A note on outputs of which only the beginning is kept."""
    kept = KEPT_START >> 20
    if _alike(paths):
        return f"{what}: too large to compare but for its size and its first {kept} MB, which are those of plain runs"
    return f"{what}: too large to compare but for its size and its first {kept} MB, which differ between runs"


def _alike(paths: Sequence[Path]) -> bool:
    """Whether all have one size, and begin with the same KEPT_START bytes."""
    if len({path.stat().st_size for path in paths}) > 1:
        return False
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("rb")) for path in paths]
        for _ in range(KEPT_START // _PIECE):
            pieces = {file.read(_PIECE) for file in files}
            if len(pieces) > 1:
                return False
            if pieces == {b""}:
                break
    return True


def _by_line(plain: Sequence[tuple[bytes, ...]], got: Sequence[bytes], what: str) -> Compared:
    """`plain`: each line in all plain runs."""
    numbers, unlike = 0, 0
    for number, (lines, line) in enumerate(zip(plain, got, strict=True)):
        if {line} == set(lines):
            continue
        blanked = {_NUMBERS.sub(b"#", x) for x in lines}
        unlike += len(blanked) > 1
        if len(blanked) > 1:
            continue
        if _NUMBERS.sub(b"#", line) not in blanked:
            return Compared([], [f"{what}, line {number + 1}, differs from the plain runs': {line[:80]!r}"])
        numbers += 1
    notes = [f"{what}: {numbers} lines differ from plain runs' in numbers alone (times, sizes)"] * bool(numbers)
    return Compared(
        notes + [f"{what}: {unlike} lines differ between plain runs and were not compared"] * bool(unlike), []
    )


def note_written_files(paths: Sequence[str], target: Path) -> None:
    """Note what a run left in the files it writes, as JSON in `target`: path -> SHA-256, or why there is none."""
    target.write_text(strict_json.dumps({path: _state(Path(path)) for path in paths}))


def _state(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_WRITTEN:
            return _TOO_LARGE
        return file_sha256(path)
    except OSError:
        return "gone"


def compare_written_files(plain: Sequence[Path], run: Path, what: str) -> Compared:
    """As `compare_outputs`, for what `note_written_files` noted after each run."""
    try:
        noted = [strict_json.loads(path.read_text()) for path in (*plain, run)]
    except (OSError, ValueError) as error:
        raise StorageError(f"{run.parent}: the notes of a run are gone ({error}); build without --resume") from error
    compared = Compared([], [])
    for path, state in noted[-1].items():
        before = {other.get(path) for other in noted[:-1]}
        if len(before) > 1:
            compared.notes.append(f"{what}: {path} differs between plain runs and was not compared")
        elif state == _TOO_LARGE:
            compared.notes.append(f"{what}: {path} is too large to compare")
        elif state not in before:
            compared.warnings.append(f"{what}: {path}, which it writes, differs from what plain runs leave there")
    return compared


def output_streams(folder: Path, run: str) -> Streams:
    """Fresh files for the output of one run."""
    remove_output(folder, run)
    return Streams(folder / f"{run}.stdout", folder / f"{run}.stderr")


def remove_output(folder: Path, run: str) -> None:
    """Remove what `run`, which has ended, printed."""
    for kind in ("stdout", "stderr"):
        (folder / f"{run}.{kind}").unlink(missing_ok=True)


def note_run(folder: Path, run: str, written: Sequence[str]) -> None:
    """Note in `folder` what `run`, which has ended, left in the files that the program writes, and keep what it printed
    as other runs did once."""
    note_written_files(written, folder / f"{run}.files.json")
    keep_printed_once(folder)


def keep_printed_once(folder: Path) -> None:
    """Keep once what runs below `folder` printed alike. None of them goes on."""
    for kind in ("stdout", "stderr"):
        outputs = sorted(folder.glob(f"*.{kind}"))
        for number, output in enumerate(outputs):
            _keep_once(output, outputs[:number])


def _keep_once(output: Path, others: Sequence[Path]) -> None:
    """Make `output` another name of the first of `others` that is equal to it, unless it is so large that only parts of
    it are kept. No run writes to a file that there is (`output_streams`), so both stay equal."""
    told = set[int]()
    # What cannot be linked here, or has just been removed, stays as it is.
    with contextlib.suppress(OSError):
        own = output.stat()
        if not 0 < own.st_size <= KEPT_START:
            return
        for other in others:
            status = other.stat()
            if status.st_ino == own.st_ino:
                return
            if status.st_ino not in told and _alike([output, other]):
                link = output.with_suffix(f"{output.suffix}.partial")
                link.unlink(missing_ok=True)
                os.link(other, link)
                link.replace(output)
                return
            told.add(status.st_ino)


def compare_run(folder: Path, plain: Sequence[str], run: str, what: str) -> Compared:
    """Compare what `run` printed and wrote with what the runs `plain` did. Raises StorageError."""
    streams = {name: Streams(folder / f"{name}.stdout", folder / f"{name}.stderr") for name in (*plain, run)}
    printed = compare_outputs([streams[name] for name in plain], streams[run], what)
    noted = [folder / f"{name}.files.json" for name in plain]
    return printed + compare_written_files(noted, folder / f"{run}.files.json", what)


def compare_few(folder: Path, plain: Sequence[str], runs: Mapping[str, str]) -> Compared:
    """Compare what `runs` printed and wrote, each named by a sentence, where there are few `plain` runs.

    One plain run cannot tell output that a program never repeats from one that depends on being traced. Then each run
    is compared with all others: where two agree and one does not, a warning says which. Raises StorageError.
    """
    if len(plain) > 1:
        each = [compare_run(folder, plain, run, what) for run, what in runs.items()]
        return sum(each[1:], each[0])
    named = {**runs, **dict.fromkeys(plain, "the plain run")}
    each = [
        compare_run(folder, [other for other in named if other != run], run, f"{what}, beside the other runs")
        for run, what in named.items()
    ]
    if not plain:
        each = each[:1]
    warnings = [said for one in each for said in one.warnings]
    return Compared([] if warnings else [said for one in each for said in one.notes], warnings)


@contextmanager
def bounded_outputs(folder: Path, unread: str | None = None) -> Iterator[None]:
    """As long as this lasts, outputs in `folder` (*.stdout, *.stderr) take no more room than that on the disk; or those
    of the run `unread` alone, of which no more than the end is kept.

    Their sizes stay: what is between reads as zeros. File systems without holes (NFS before 4.2) keep all of it.
    """
    ended = threading.Event()
    bound = ("*", KEPT_START, _LEAST_HOLE) if unread is None else (unread, 0, _LEAST_HOLE_IN_UNREAD)
    watcher = threading.Thread(target=_watch, args=(folder, ended, *bound), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(folder: Path, ended: threading.Event, run: str, start: int, least: int) -> None:
    while not ended.wait(_LOOK_SECONDS):
        for path in (*folder.glob(f"{run}.stdout"), *folder.glob(f"{run}.stderr")):
            # It may be removed at any moment, and another made.
            with contextlib.suppress(OSError):
                _drop_middle(path, start, least)


def _drop_middle(path: Path, start: int, least: int) -> None:
    """Make what is neither within the first `start` bytes nor at the end a hole, where it takes room for `least`.

    What is a hole already is not noted: a new output may have the inode of one that was removed.
    """
    status = path.stat()
    end = status.st_size - KEPT_END
    if end <= start or status.st_blocks * 512 - start - KEPT_END < least:
        return
    descriptor = os.open(path, os.O_WRONLY)
    try:
        _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, end - start)
    finally:
        os.close(descriptor)
