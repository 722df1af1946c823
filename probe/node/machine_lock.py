# SPDX-License-Identifier: Apache-2.0
"""One measurement at a time on the processors it may use, whoever measures.

The lock is a name in the kernel's abstract socket namespace, one for each processor: any user can hold it, nothing is
left on a disk, and it ends with the process that holds it, however that ends. Containers with a network namespace of
their own have names of their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator

from checkpoint.errors import NodeBusy

WAIT_SECONDS = 900.0
"""How long a measurement waits for another one to end."""

_POLL_SECONDS = 0.2
_CREDENTIALS = struct.Struct("3i")


@contextlib.contextmanager
def measuring_alone(
    cpus: Collection[int], *, wait: float = WAIT_SECONDS, waiting: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Hold the lock of these processors. `waiting` is told once who has it; NodeBusy after `wait` seconds."""
    deadline = time.monotonic() + wait
    told = False
    with contextlib.ExitStack() as held:
        # All in one order: two that want some of the same never wait for each other.
        for cpu in sorted(cpus):
            name = b"\0probe-measuring-cpu-%d" % cpu
            while True:
                lock = _take(name)
                if lock is not None:
                    held.callback(lock.close)
                    break
                if not told:
                    told = True
                    waiting(_holder(name))
                if time.monotonic() > deadline:
                    raise NodeBusy(
                        f"another measurement is running here ({_holder(name)}) and did not end within {wait:g} s; "
                        "try again later"
                    )
                time.sleep(_POLL_SECONDS)
        yield


def _take(name: bytes) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(name)
        # Nobody takes up what those connect who ask for our name.
        lock.listen(socket.SOMAXCONN)
        return lock
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None


def _holder(name: bytes) -> str:
    """Who has the lock, as far as the kernel tells."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        asking.connect(name)
        raw = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        return f"process {pid} of user {uid}, this one is {os.getpid()}" if pid else f"a process of user {uid}"
    return "a process that does not say who it is"
