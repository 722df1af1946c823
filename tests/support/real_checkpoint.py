# SPDX-License-Identifier: Apache-2.0
"""Real CRIU checkpoints of small real processes, for the tests of everything that reads images."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from checkpoint.criu.tool import find_criu
from checkpoint.linux import ADDR_NO_RANDOMIZE

WORKER = """
import mmap, os, sys, time
source = open(sys.argv[1], "rb", buffering=0)
source.read(3)
target = open(sys.argv[2], "ab")
mapped = mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
os.umask(0o27)
numbers = list(range(200000))
zeros = bytearray(1 << 20)
zeros[::4096] = b"\\1" * 256
zeros[::4096] = b"\\0" * 256
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""

HOLDER = """
import ctypes, mmap, os, select, signal, socket, sys, tempfile, threading, time
libc = ctypes.CDLL(None)
pipe = os.pipe()
pair = socket.socketpair()
event = os.eventfd(0)
poll = select.epoll()
timer = libc.timerfd_create(1, 0)
memory = os.memfd_create("memory")
os.truncate(memory, 4096)
of_memory = mmap.mmap(memory, 4096)
signals = libc.signalfd(-1, ctypes.create_string_buffer(128), 0)
os.mkfifo(sys.argv[1] + ".fifo")
fifo = os.open(sys.argv[1] + ".fifo", os.O_RDWR)
shared = mmap.mmap(-1, 8192)
shared[:2] = b"ab"
written = open(sys.argv[1], "r+b")
of_file = mmap.mmap(written.fileno(), 0)
gone = tempfile.TemporaryFile(dir=os.path.dirname(sys.argv[1]))
gone.write(b"x")
gone.flush()
named = open(sys.argv[1] + ".deleted", "w")
os.unlink(sys.argv[1] + ".deleted")
running = libc.timerfd_create(1, 0)
libc.timerfd_settime(running, 0, (ctypes.c_long * 4)(0, 0, 600, 0), None)
expired = libc.timerfd_create(1, 0)
libc.timerfd_settime(expired, 0, (ctypes.c_long * 4)(600, 0, 0, 1), None)
cancelled = libc.timerfd_create(0, 0)
libc.timerfd_settime(cancelled, 3, (ctypes.c_long * 4)(0, 0, int(time.time()) + 600, 0), None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
if os.fork() == 0:
    time.sleep(600)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def dump_process(program: str, arguments: list[Path], folder: Path) -> Path:
    """Start Python on `program`, stop it once it has printed "ready", and checkpoint it into `folder`.

    Started as criu.md demands: a session of its own, no terminal, output appended to a file, no other
    descriptors, ASLR off. The process is gone afterwards.
    """
    folder.mkdir()
    output = folder.with_suffix(".out")
    libc = ctypes.CDLL(None)
    with output.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=lambda: libc.personality(ADDR_NO_RANDOMIZE),
        )
    try:
        deadline = time.monotonic() + 30
        while b"ready" not in output.read_bytes():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, "the process to checkpoint never became ready"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGSTOP)
        find_criu().dump(process.pid, folder, leave_stopped=True, timeout=60)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return folder
