# SPDX-License-Identifier: Apache-2.0
"""Paths made in a private root by an ordinary user, below folders that this user may enter or not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from direct_runs import NOBODY
from ordinary_user import home_for_anybody

from checkpoint.linux import CLONE_NEWNS, CLONE_NEWUSER, PR_SET_DUMPABLE
from checkpoint.restore.isolation import enter_namespaces
from checkpoint.restore.private_root import enter_private_root, make_room


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where anybody may go, though not into `closed`, and change nothing but `scratch`."""
    with home_for_anybody() as home:
        made = home.parent
        (made / "closed" / "inner").mkdir(parents=True)
        (made / "closed").chmod(0o700)
        (made / "open").mkdir(mode=0o755)
        (made / "open" / "kept").touch()
        (home / "scratch").mkdir()
        os.chown(home / "scratch", NOBODY, NOBODY)
        yield made


def as_nobody(action: Callable[[], str]) -> str:
    """What `action` returns in a child that is an ordinary user, or its error."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            # As a program has it that was started so: its /proc/self is its own.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            os.write(write, action().encode())
        except BaseException as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def room_for(folder: Path, wanted: Path) -> str:
    """Whether a file is there after room was made for it, and what else is in its folder."""

    def action() -> str:
        enter_namespaces(CLONE_NEWUSER | CLONE_NEWNS)
        covered = enter_private_root(str(folder / "home" / "scratch"), [])
        make_room([], [str(wanted)], covered)
        found = folder / wanted.relative_to(folder).parts[0]
        return f"{wanted.is_file()} {sorted(path.name for path in found.iterdir())}"

    return as_nobody(action)


def test_a_folder_that_nobody_may_enter_is_covered(folder: Path) -> None:
    wanted = folder / "closed" / "inner" / "deep" / "file"
    assert room_for(folder, wanted) == "True ['inner']"
    assert not wanted.parent.exists()


def test_a_folder_that_can_be_entered_is_not(folder: Path) -> None:
    said = room_for(folder, folder / "open" / "deep" / "file")
    # Whether it takes changes is a matter of the kernel; its files stay in any case.
    refused = f"[Errno 13] Permission denied: '{folder / 'open' / 'deep'}'"
    assert said in (refused, "True ['deep', 'kept']")
    assert [path.name for path in (folder / "open").iterdir()] == ["kept"]
