# SPDX-License-Identifier: Apache-2.0
"""Real processes that hold what no probe can, or only what leads to themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_probe import ROOT

from checkpoint.process import maps as maps_module
from checkpoint.process.descriptors import LARGEST_DELETED, OTHER, outside, refusal
from checkpoint.process.maps import LARGEST_MAPPED, key_of, named_process
from checkpoint.process.sockets import nameless_pairs

CHILD = """
import ctypes, mmap, os, select, signal, socket, sys, tempfile, time
libc = ctypes.CDLL(None)
def timer(seconds, clock=1, flags=0):
    made = libc.timerfd_create(clock, 0)
    assert libc.timerfd_settime(made, flags, (ctypes.c_long * 4)(0, 0, seconds, 0), None) == 0
    return made
def deleted(size):
    file = tempfile.TemporaryFile(dir=".")
    os.truncate(file.fileno(), size)
    return file
def shared_memory():
    file = os.open("/dev/shm/m", os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink("/dev/shm/m")
    os.truncate(file, 4096)
    return mmap.mmap(file, 4096)
def mapped_file(size):
    file = os.open("f", os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(file, size)
    return mmap.mmap(file, 4)
def child(shared):
    if not os.fork():
        libc.prctl(1, 9)
        time.sleep(600)
    return shared
def listening(backlog=False):
    server = socket.create_server(("127.0.0.1", 0))
    return [server, backlog and socket.create_connection(server.getsockname())]
def waited_for():
    one = socket.socket(type=socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))
    one.sendto(b"letter", one.getsockname())
    return one
def impatient():
    one = socket.socket(type=socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes([5]) + bytes(15))
    return one
def letters_one_way():
    one, other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind("letters")
    other.connect("letters")
    return one, other
def segment(removed, flags=0):
    number = libc.shmget(0, 2 << 20, 0o1600 | flags)
    libc.shmat.restype = ctypes.c_void_p
    assert libc.shmat(number, None, 0) > 0
    print(f"segment {number}", flush=True)
    return number, removed and libc.shmctl(number, 0, None)
def connected_nowhere():
    one = socket.socket(type=socket.SOCK_DGRAM)
    one.connect(("127.0.0.1", 9))
    return one
kept = eval(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


ALONE = (
    "socket.socket()", "socket.socket(type=socket.SOCK_DGRAM)", "socket.socket(socket.AF_UNIX)", "listening()",
    "[s.bind(('127.0.0.1', 0)) or s for s in [socket.socket(type=socket.SOCK_DGRAM)]]",
    "[s.bind('name') or s.listen() or s for s in [socket.socket(socket.AF_UNIX)]]",
)  # fmt: skip
"""Sockets that nobody is connected to."""


@contextmanager
def holding(expression: str, folder: Path, **streams: int) -> Iterator[int]:
    """A process that holds what a Python expression makes; its number."""
    said = folder / "said"
    with said.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, expression],
            **{"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **streams},
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + 30
        while "stdout" not in streams and b"ready" not in said.read_bytes():
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield process.pid
    finally:
        process.kill()
        process.communicate()
        for number in re.findall(rb"^segment (\d+)$", said.read_bytes(), re.M):
            subprocess.run(["ipcrm", "-m", number.decode()], capture_output=True)


@pytest.mark.parametrize(
    "expression",
    [
        "os.pipe()", "os.close(os.pipe()[1])", "os.close(os.pipe()[0])", "socket.socketpair()", "os.eventfd(3)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "select.epoll()", "timer(0)", "deleted(1 << 20)",
        "libc.signalfd(-1, bytes(128), 0)", "open('/dev/null')", "open('/dev/zero', 'w')", "open('file', 'w')",
        "[mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE) for f in [deleted(4096)]]",
        "mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE)", "os.memfd_create('m')", "mmap.mmap(-1, 4096)", "shared_memory()",
        "mapped_file(4096)", "timer(600)", "timer(0, clock=0, flags=3)", "segment(removed=True)", *ALONE,
    ],
)  # fmt: skip
def test_what_leads_nowhere_else(expression: str, tmp_path: Path) -> None:
    with holding(expression, tmp_path) as pid:
        assert outside(pid) == []


@pytest.mark.parametrize("expression", ALONE)
def test_criu_wants_the_address_of_a_socket(expression: str, tmp_path: Path) -> None:
    with holding(expression, tmp_path) as pid:
        assert outside(pid, by_criu=True) == ["a socket (descriptor 3)"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("listening(backlog=True)", r"a socket \(descriptor 3\)"),
        ("connected_nowhere()", r"a socket \(descriptor 3\)"),
        ("waited_for()", r"a socket \(descriptor 3\)"),
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM)", r"a socket \(descriptor 3\)"),
        ("[s.bind(('127.0.0.1', 0)) or s for s in [socket.socket()]]", r"a socket \(descriptor 3\)"),
        ("socket.socketpair()[0]", r"a socket \(descriptor \d\)"),
        ("[s.bind(p) or s for s, p in [(socket.socket(socket.AF_UNIX), 'name')]]", r"a socket \(descriptor 3\)"),
        ("os.pipe2(os.O_DIRECT)", r"a pipe of packets \(descriptor 4\)"),
        ("os.mkfifo('f') or os.open('f', os.O_RDWR)", r"a named pipe \(descriptor 3\)"),
        ("os.eventfd(1, os.EFD_SEMAPHORE)", r"an eventfd that counts \(EFD_SEMAPHORE\) \(descriptor 3\)"),
        ("timer(1 << 40, clock=0, flags=3)", r"a timer that ends when the clock is set \(descriptor 3\)"),
        ("os.memfd_create('m', os.MFD_HUGETLB)", r"a memfd of huge pages \(descriptor 3\)"),
        (
            "child(os.memfd_create('m'))",
            r"a memfd \(descriptor 3\), which process \d+ \(\S+\) has",
        ),
        (
            "child(mmap.mmap(-1, 4096))",
            r"shared memory at 0x\S+, which process \d+ \(\S+\) has",
        ),
        ("child(shared_memory())", r"shared memory \(/dev/shm/m\) at 0x\S+, which process \d+"),
        ("libc.inotify_init()", r"an inotify descriptor \(descriptor 3\)"),
        ("os.pidfd_open(os.getpid())", r"a pidfd \(descriptor 3\)"),
        ("open('/dev/kmsg')", r"the device /dev/kmsg \(descriptor 3\)"),
        ("os.openpty()", r"a terminal \(descriptor 4\)|the device /dev/\S+ \(descriptor 4\)"),
        (f"deleted({LARGEST_DELETED + 1})", r"a deleted file of more than 64 MB \(descriptor 3, /\S+\)"),
        (f"mapped_file({LARGEST_MAPPED + 1})", r"/\S+/f mapped shared and writable at 0x\S+"),
        ("child(mapped_file(4))", r"/\S+/f mapped shared at 0x\S+, which process \d+ \(\S+\) has too"),
        ("segment(removed=False)", "System V shared memory at"),
        ("segment(removed=True, flags=0o14000)", "System V shared memory at"),  # of huge pages, none reserved
        ("impatient()", r"a socket \(descriptor 3\)"),
        ("letters_one_way()", r"a socket \(descriptor 3\)"),
        ("child(segment(removed=True))", r"System V shared memory at 0x\S+, which process \d+ \(\S+\) has too"),
    ],
)
def test_what_leads_elsewhere_is_named(expression: str, expected: str, tmp_path: Path) -> None:
    if "kmsg" in expression and not os.access("/dev/kmsg", os.R_OK):
        expression, expected = "open('/dev/ptmx')", r"the device /dev/\S+ \(descriptor 3\)"
    with holding(expression, tmp_path) as pid:
        found = outside(pid)
    assert any(re.match(expected, fault) for fault in found), found


FIRST_SEGMENT = """
import ctypes, os
from checkpoint.capture.memory_map import read_areas
from checkpoint.process.descriptors import outside
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(0, 4096, 0o1600)
assert number == 0 and libc.shmat(number, None, 0) > 0 and libc.shmctl(number, 0, None) == 0
(area,) = (area for area in read_areas(os.getpid()) if "SYSV" in area.path)
assert area.as_memory and area.inode and area.vma(1).flags == 1
assert not [fault for fault in outside(os.getpid()) if "System V" in fault]
"""


def test_the_first_segment_of_all_has_number_0() -> None:
    """As in a container just started. Where another one has a segment of that number, it is not the same."""
    own = ["unshare", "-i", sys.executable, "-c"]
    waits = "import ctypes, time; c = ctypes.CDLL(None); c.shmat(c.shmget(0, 4096, 0o1600), None, 0); print(flush=True)"
    with subprocess.Popen([*own, f"{waits}; time.sleep(600)"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        done = subprocess.run([*own, FIRST_SEGMENT], capture_output=True, text=True, cwd=ROOT)
        other.kill()
    assert done.returncode == 0, done.stderr


def test_segments_are_told_from_files_of_that_number() -> None:
    ours = key_of("00:01", "7", "/SYSV00000000 (deleted)")
    assert ours != key_of("00:01", "7", "/memfd:x (deleted)") == (ours[0], 7)
    segment, memory = maps_module._line_with(ours), maps_module._line_with((ours[0], 7))
    text = b"7f-80 rw-s 00000000 00:01 7                        "
    assert segment.search(text + b"/SYSV00000000 (deleted)") and not segment.search(text + b"/memfd:x (deleted)")
    assert memory.search(text + b"/memfd:x (deleted)") and not memory.search(text + b"/SYSV00000000 (deleted)")


def test_a_pipe_to_somebody(tmp_path: Path) -> None:
    with holding("None", tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pid:
        ours = f"which {named_process(os.getpid())} has too"
        assert outside(pid) == [f"a pipe (descriptor 0), {ours}"]
        assert outside(pid, by_criu=True) == [f"a pipe (descriptor 0), {ours}", f"a pipe (descriptor 1), {ours}"]


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    assert outside(2**22 - 1) == []


def test_the_kernel_says_which_sockets_belong_together(tmp_path: Path) -> None:
    with holding("socket.socketpair()", tmp_path) as pid:
        targets = [str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in (3, 4)]
        one, other = (int(target[8:-1]) for target in targets)
        pairs = nameless_pairs()
    assert pairs[one] == other and pairs[other] == one


@pytest.mark.parametrize(
    ("found", "pipes", "memory"),
    [
        (["a socket (descriptor 3)"], True, False),
        ([f"a pipe (descriptor 1){OTHER}process 7 (sort) has too"], True, False),
        (["huge pages (hugetlb) at 0x1000-0x2000"], False, True),
        ([f"a memfd (descriptor 3){OTHER}process 7 (sort) has too"], False, True),
        (["a socket (descriptor 3)", "/f mapped shared and writable at 0x1000-0x2000"], True, True),
    ],
)
def test_the_advice_is_about_what_is_held(found: list[str], pipes: bool, memory: bool) -> None:
    said = str(refusal("it", found))
    assert said.startswith(f"it: while it runs, it holds {', '.join(found)}; ")
    assert ("in place of pipes" in said, "huge pages and" in said) == (pipes, memory)
