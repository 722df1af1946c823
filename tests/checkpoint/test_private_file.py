# SPDX-License-Identifier: Apache-2.0
"""Files with a program's memory: nobody else reads them, and none that is there is written to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint import private_file
from checkpoint.private_file import copy_private, create_private, keep_length_alone

CONTENTS = bytes(range(256)) * 9000


def created(_: Path, target: Path) -> None:
    with create_private(target) as out:
        out.write(CONTENTS)


@pytest.mark.parametrize("make", [created, copy_private])
def test_they_are_for_nobody_else(make: Callable[[Path, Path], None], tmp_path: Path) -> None:
    source, target, link = tmp_path / "source", tmp_path / "target", tmp_path / "link"
    source.write_bytes(CONTENTS)
    before = os.umask(0)
    try:
        make(source, target)
    finally:
        os.umask(before)
    assert (target.stat().st_mode & 0o777, target.read_bytes()) == (0o600, CONTENTS)
    link.symlink_to(tmp_path / "elsewhere")
    for there in (target, link):
        with pytest.raises(FileExistsError):
            make(source, there)
    assert not (tmp_path / "elsewhere").exists()


PLACES = [(0, 0), (0, 1), (1 << 20, 0), (0, 1 << 20), (5, 1 << 20), (1 << 20, 1 << 21)]


@pytest.mark.parametrize(("before", "behind"), PLACES)
@pytest.mark.parametrize("holes", [True, False])
def test_holes_stay(before: int, behind: int, holes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data between two holes, and more behind the second; also where the file system knows of none."""
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as out:
        out.seek(before)
        out.write(CONTENTS)
        out.seek(behind, os.SEEK_CUR)
        out.write(b"end")
        out.truncate(out.tell() + behind)
    seek = os.lseek

    def without_holes(file: int, at: int, how: int) -> int:
        if how in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return seek(file, at, how)

    if not holes:
        monkeypatch.setattr(private_file.os, "lseek", without_holes)
    copy_private(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert not holes or target.stat().st_blocks <= source.stat().st_blocks + 8


def test_an_empty_file_and_one_hole_are_copied(tmp_path: Path) -> None:
    for size in (0, 1 << 20):
        source, target = tmp_path / f"source-{size}", tmp_path / f"target-{size}"
        source.write_bytes(b"x" * size)
        keep_length_alone(source)
        copy_private(source, target)
        assert target.read_bytes() == bytes(size) and source.stat().st_blocks == target.stat().st_blocks == 0


def test_a_hole_takes_the_place_of_what_nobody_may_write_to(tmp_path: Path) -> None:
    source = tmp_path / "0"
    source.write_bytes(CONTENTS)
    source.chmod(0o440)
    (tmp_path / "0.hole").write_text("left by a build that was killed")
    before = source.stat()
    keep_length_alone(source)
    assert source.stat().st_ino != before.st_ino, "of another name nothing is lost"
    assert (source.stat().st_size, source.stat().st_blocks, source.stat().st_mode) == (len(CONTENTS), 0, before.st_mode)
    assert list(tmp_path.iterdir()) == [source]


def test_other_faults_of_a_file_are_no_lack_of_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"x")

    seek = os.lseek

    def failing(file: int, at: int, how: int) -> int:
        if how == os.SEEK_DATA:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return seek(file, at, how)

    monkeypatch.setattr(private_file.os, "lseek", failing)
    with pytest.raises(OSError, match="Input/output"):
        copy_private(tmp_path / "source", tmp_path / "target")
