# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures, and a watch over every test: what it leaves behind is an error of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracing import SESSION_VARIABLE

_GRACE_SECONDS = 2.0


_CLONE_NEWNS = 0x00020000
_TIMED_AGAIN = 2
"""How often a test that compares times is tried again: the host's own neighbours disturb a stretch of some seconds."""

_OF_THE_HOST = "more or less than in the run, in the median: try --warmup auto"
"""The refusal that rests on two times of the same work alone: where a host has two speeds, no build can help it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        timed = item.get_closest_marker("timed") is not None
        again = {} if timed else {"condition": _refused_for_the_host}
        item.add_marker(pytest.mark.flaky(reruns=_TIMED_AGAIN, **again))


def _refused_for_the_host(error: BaseException | None) -> bool:
    """Whether a test failed since a build was refused for this host's own changes of speed."""
    return _OF_THE_HOST in str(error)


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder where the test programs are built, once per session and worker."""
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="session", autouse=True)
def own_shared_memory() -> None:
    """A /dev/shm of this session and worker alone: what others leave there, or work with, is not ours."""
    if os.geteuid() != 0:
        return
    # Of this thread and what it starts. The other threads are those of pytest-xdist, which open no files.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for command in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "mode=1777", "probe-tests", "/dev/shm"]):
        subprocess.run(["mount", *command], check=True)


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Caches and temporary folders of the tests alone. Yields the folder for temporary ones."""
    # Started by nohup or in the background we ignore Ctrl-C, and so would everything that we start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    temporary = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", str(temporary))
        # Hundreds of commands are started, each of which would compile all of our modules again.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setattr("tempfile.tempdir", None)
        patch.setenv(SESSION_VARIABLE, f"{os.getpid()}-{time.monotonic_ns()}")
        yield temporary


def _processes() -> dict[int, str]:
    """Living and unreaped processes that this session started, with their command lines."""
    mark = f"{SESSION_VARIABLE}={os.environ[SESSION_VARIABLE]}".encode()
    own, found = os.getpid(), {}
    # Before and after each of thousands of tests: plain strings take half the time of paths.
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == own:
            continue
        try:
            parent = int(_read(f"/proc/{name}/stat").rsplit(b")", 1)[1].split(None, 2)[1])
            if parent == own or mark in _read(f"/proc/{name}/environ").split(b"\0"):
                command = _read(f"/proc/{name}/cmdline").replace(b"\0", b" ").decode(errors="replace")
                found[int(name)] = command or _read(f"/proc/{name}/comm").decode().strip()
        except (OSError, IndexError):
            continue
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _mounts(base: Path) -> set[str]:
    """Mount points below this session's folder."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {point for point in points if point.startswith(f"{base}/")}


def _locks() -> set[str]:
    """File locks this process holds."""
    lines = (line.split(None, 1)[1] for line in Path("/proc/locks").read_text().splitlines())
    return {line for line in lines if line.split()[3] == str(os.getpid())}


def _descriptors() -> dict[str, str]:
    """Open files of this process by number; the interpreter's own and shared ones may come and go."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except OSError:
            continue
    return {number: goal for number, goal in found.items() if goal.startswith("/proc/") and "/fd" not in goal}


def _left(temporary: Path) -> dict[str, object]:
    return {
        "processes": _processes(),
        "mounts": _mounts(temporary.parent),
        "locks": _locks(),
        "temporary files": {entry.name for entry in temporary.iterdir()},
        "shared memory": {entry.name for entry in Path("/dev/shm").iterdir()},
        "descriptors of processes": _descriptors(),
    }


@pytest.fixture(autouse=True)
def nothing_left_behind(own_places: Path) -> Iterator[None]:
    """No process, mount, lock, descriptor, shared memory or temporary file outlives a test."""
    before = _left(own_places)
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while (after := _more(before, _left(own_places))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not after, f"left behind: {after}"


def _more(before: dict[str, object], after: dict[str, object]) -> dict[str, list[object]]:
    """What `after` has that `before` had not, by kind; kinds without any are left out."""
    added: dict[str, list[object]] = {}
    for kind, things in after.items():
        earlier, later = before[kind], things
        assert isinstance(earlier, (set, dict)) and isinstance(later, (set, dict))
        fresh = [things[x] if isinstance(things, dict) else x for x in later if x not in earlier]
        if fresh:
            added[kind] = fresh
    return added
