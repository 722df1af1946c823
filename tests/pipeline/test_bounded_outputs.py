# SPDX-License-Identifier: Apache-2.0
"""Outputs of gigabytes: neither kept whole nor read whole."""

from __future__ import annotations

import os
import time
from pathlib import Path

from checkpoint.process.program import Streams
from probe.pipeline.outputs import KEPT_END, KEPT_START, Compared, bounded_outputs, compare_outputs

SIZE = 300 << 20


def room(path: Path) -> int:
    return path.stat().st_blocks * 512


def print_much(path: Path, size: int, *, at: int = 0, word: bytes = b"output\n\n") -> None:
    """Append as a program does, `word` from byte `at` on."""
    piece = b"output\n\n" * (1 << 17)
    with path.open("ab", buffering=0) as out:
        for begun in range(0, size, len(piece)):
            out.write(word * (1 << 17) if begun >= at else piece)


def test_the_middle_of_a_large_output_takes_no_room(tmp_path: Path) -> None:
    path, small = tmp_path / "plain-0.stdout", tmp_path / "plain-0.stderr"
    small.write_text("few words")
    with bounded_outputs(tmp_path):
        # A file system may give a new output the inode of the one removed.
        for again in (False, True):
            if again:
                path.unlink()
            print_much(path, SIZE)
            deadline = time.monotonic() + 30
            while room(path) > 100 << 20 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert room(path) < 100 << 20
        with path.open("ab") as out:
            out.write(b"the end")
    assert room(path) < 100 << 20 and path.stat().st_size == SIZE + 7
    with path.open("rb") as file:
        start = file.read(KEPT_START)
        assert start == b"output\n\n" * (KEPT_START // 8)
        file.seek(-KEPT_END // 2, os.SEEK_END)
        assert file.read().endswith(b"output\n\nthe end")
    assert small.read_text() == "few words"


def test_an_output_that_nobody_reads_takes_little_room(tmp_path: Path) -> None:
    unread, other = tmp_path / "capture.stdout", tmp_path / "plain-0.stdout"
    with bounded_outputs(tmp_path, unread="capture"):
        for path in (unread, other):
            print_much(path, 8 << 20)
        deadline = time.monotonic() + 30
        while room(unread) > KEPT_END + (1 << 16) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert room(unread) <= KEPT_END + (1 << 16) and unread.stat().st_size == other.stat().st_size
    assert room(other) >= 8 << 20 and unread.read_bytes().endswith(b"output\n\n")


def compared(folder: Path, *, at: int, size: int = KEPT_START + (8 << 20)) -> Compared:
    """Two plain runs beside one that prints other words from byte `at` on; and `size` bytes in all."""
    made = []
    for name in ("plain-0", "plain-1", "run"):
        made.append(Streams(folder / f"{name}.stdout", folder / f"{name}.stderr"))
        for path in (made[-1].stdout, made[-1].stderr):
            path.write_bytes(b"")
        last = name == "run"
        print_much(
            made[-1].stdout,
            size if last else KEPT_START + (8 << 20),
            at=at,
            word=b"OUTPUT\n\n" if last else b"output\n\n",
        )
    return compare_outputs(made[:2], made[2], "the run")


def test_large_outputs_are_compared_by_their_beginning(tmp_path: Path) -> None:
    (note,) = compared(tmp_path, at=KEPT_START + (1 << 20)).notes
    assert "first 64 MB, which are those of plain runs" in note
    (note,) = compared(tmp_path, at=KEPT_START - (2 << 20)).notes
    assert "which differ between runs" in note
    (note,) = compared(tmp_path, at=KEPT_START + (1 << 20), size=KEPT_START + (9 << 20)).notes
    assert "which differ between runs" in note
