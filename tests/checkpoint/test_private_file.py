# SPDX-License-Identifier: Apache-2.0
"""Files with a program's memory: nobody else reads them, and none that is there is written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.private_file import copy_private, create_private

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
