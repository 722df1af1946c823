# SPDX-License-Identifier: Apache-2.0
"""Phases with shared memory on nodes that are strict about memfds, or too old to be."""

from __future__ import annotations

import ctypes
import os
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from direct_runs import memfd_job, mount
from direct_state import timed

from checkpoint.restore.criu_restore import RestoreJob

_NEW_PID, _NEW_MOUNTS = 0x20000000, 0x20000
_SETTING = Path("/proc/sys/vm/memfd_noexec")
_MEMFD_CREATE, _MFD_EXEC, _EINVAL = 319, 0x10, 22

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes such a node")


@pytest.fixture(scope="module")
def job(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    return memfd_job(builds, tmp_path_factory.mktemp("memfd"))


def done_apart(before: Callable[[], None], action: Callable[[], object], said: Path) -> None:
    """Do both in a process with process numbers and mounts of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if not pid:
        try:
            assert libc.unshare(_NEW_PID | _NEW_MOUNTS) == 0
            inner = os.fork()
            if not inner:
                mount(None, "/", None, 0x44000)
                mount("proc", "/proc", "proc", 0)
                before()
                action()
                os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
        except BaseException:
            said.write_text(traceback.format_exc())
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, said.read_text() if said.exists() else status


@pytest.mark.skipif(not _SETTING.exists(), reason="this kernel makes no such difference")
def test_where_none_is_executable_unless_it_asks(job: RestoreJob, tmp_path: Path) -> None:
    def strict() -> None:
        _SETTING.write_text("1")
        file = ctypes.CDLL(None).memfd_create(b"as the kernel has it", 0)
        assert not os.fstat(file).st_mode & 0o111
        os.close(file)

    done_apart(strict, lambda: timed(job, tmp_path), tmp_path / "said")


def test_where_none_can_ask(job: RestoreJob, tmp_path: Path) -> None:
    """As before Linux 6.3: memfd_create knows no such flag."""
    done_apart(without_the_flag, lambda: timed(job, tmp_path), tmp_path / "said")


def without_the_flag() -> None:
    code = b"".join(
        [
            struct.pack("<HBBI", 0x20, 0, 0, 0),
            struct.pack("<HBBI", 0x15, 0, 3, _MEMFD_CREATE),
            # The second argument: seccomp_data.args[1].
            struct.pack("<HBBI", 0x20, 0, 0, 24),
            struct.pack("<HBBI", 0x45, 0, 1, _MFD_EXEC),
            struct.pack("<HBBI", 0x06, 0, 0, 0x00050000 | _EINVAL),
            struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000),
        ]
    )
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    assert libc.prctl(22, 2, ctypes.byref(program)) == 0
    assert libc.memfd_create(b"new", _MFD_EXEC) == -1 and ctypes.get_errno() == _EINVAL
