# SPDX-License-Identifier: Apache-2.0
"""Whether a run printed and wrote the same as the plain runs did.

Programs print times and process numbers. What already differs between two plain runs cannot be held against a
traced one: such lines are compared with their numbers blanked out, or not at all where even that differs.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from checkpoint.errors import Diverged, StorageError
from checkpoint.process.program import Streams

_NUMBERS = re.compile(rb"[0-9]+(?:[.:,][0-9]+)*")
_LARGEST_BY_LINE = 64 << 20
"""Larger outputs that are not reproducible byte by byte are not compared line by line."""

_LARGEST_WRITTEN = 4 << 30
_TOO_LARGE = "too large"


def compare_outputs(plain: Sequence[Streams], run: Streams, what: str) -> list[str]:
    """Raise Diverged where `run` printed something else than the plain runs; return what could not be compared."""
    doubts = []
    for name in ("stdout", "stderr"):
        references = [getattr(s, name) for s in plain]
        missing = next((p for p in (*references, getattr(run, name)) if not p.is_file()), None)
        if missing is not None:
            raise StorageError(f"{missing}: the output of a run is gone; build without --resume")
        doubts += _compare(references, getattr(run, name), f"{what}: {name}")
    return doubts


def _compare(references: Sequence[Path], other: Path, what: str) -> list[str]:
    first = references[0]
    if all(filecmp.cmp(first, r, shallow=False) for r in references[1:]):
        if not filecmp.cmp(first, other, shallow=False):
            raise Diverged(
                f"{what} differs from the plain run's ({first} against {other}): the program notices that it is "
                "traced (it checks its own code?), or it does not repeat itself"
            )
        return [] if len(references) > 1 else [f"{what}: compared with one plain run only"]
    if any(p.stat().st_size > _LARGEST_BY_LINE for p in (*references, other)):
        return [f"{what}: differs between plain runs and is too large to compare by line"]
    texts = [p.read_bytes().splitlines() for p in references]
    got = other.read_bytes().splitlines()
    if len({len(t) for t in texts}) > 1:
        return [f"{what}: even its length differs between plain runs; not compared"]
    if len(got) != len(texts[0]):
        raise Diverged(f"{what} has {len(got)} lines where plain runs have {len(texts[0])} ({first} against {other})")
    skipped = 0
    for number, lines in enumerate(zip(*texts, strict=True)):
        line = got[number]
        if len(set(lines)) == 1:
            same = line == lines[0]
        else:
            blanked = {_NUMBERS.sub(b"#", x) for x in lines}
            skipped += len(blanked) > 1
            same = len(blanked) > 1 or _NUMBERS.sub(b"#", line) in blanked
        if not same:
            raise Diverged(f"{what}, line {number + 1}, differs from the plain runs': {line[:80]!r} ({other})")
    return [f"{what}: {skipped} lines differ between plain runs and were not compared"] if skipped else []


def note_written_files(paths: Sequence[str], target: Path) -> None:
    """Note what a run left in the files it writes, as JSON in `target`: path -> SHA-256, or why there is none."""
    target.write_text(json.dumps({path: _state(Path(path)) for path in paths}))


def _state(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_WRITTEN:
            return _TOO_LARGE
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return digest.hexdigest()
    except OSError:
        return "gone"


def compare_written_files(plain: Sequence[Path], run: Path, what: str) -> list[str]:
    """As `compare_outputs`, for what `note_written_files` noted after each run."""
    try:
        noted = [json.loads(path.read_text()) for path in (*plain, run)]
    except (OSError, ValueError) as error:
        raise StorageError(f"{run.parent}: the notes of a run are gone ({error}); build without --resume") from error
    doubts = []
    for path, state in noted[-1].items():
        before = {other.get(path) for other in noted[:-1]}
        if len(before) > 1:
            doubts.append(f"{what}: {path} differs between plain runs and was not compared")
        elif state == _TOO_LARGE:
            doubts.append(f"{what}: {path} is too large to compare")
        elif state not in before:
            raise Diverged(f"{what}: {path}, which it writes, differs from what plain runs leave there")
    return doubts


def output_streams(folder: Path, run: str) -> Streams:
    """Fresh files for the output of one run."""
    streams = Streams(folder / f"{run}.stdout", folder / f"{run}.stderr")
    for path in (streams.stdout, streams.stderr):
        path.unlink(missing_ok=True)
    return streams


def note_run(folder: Path, run: str, written: Sequence[str]) -> None:
    """Note in `folder` what `run` left in the files that the program writes."""
    note_written_files(written, folder / f"{run}.files.json")


def compare_run(folder: Path, plain: Sequence[str], run: str, what: str) -> list[str]:
    """Raise Diverged where `run` printed or wrote something else than the runs `plain`; return the warnings."""
    streams = {name: Streams(folder / f"{name}.stdout", folder / f"{name}.stderr") for name in (*plain, run)}
    warnings = compare_outputs([streams[name] for name in plain], streams[run], what)
    noted = [folder / f"{name}.files.json" for name in plain]
    return warnings + compare_written_files(noted, folder / f"{run}.files.json", what)
