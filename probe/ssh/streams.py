# SPDX-License-Identifier: Apache-2.0
"""Streams that an SSH connection runs over: a socket, a proxy command, or a channel through a jump host."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import signal
import socket
import subprocess
import threading
import time
from typing import Any, Final

from checkpoint.errors import ProbeError
from probe.foreign_text import Tail
from probe.ssh.paramiko_private import TransportSocket, socket_is_closed

LOGIN_BYTES: Final = 1 << 20
"""Most that a node may send before the login: greetings, key exchange and banner take a few kilobytes."""

_WRITE_SECONDS: Final = 60.0
_UNSENT_BYTES: Final = 1 << 17
_PROXY_GRACE_SECONDS: Final = 0.5
_TCP_NOTSENT_LOWAT: Final = 25  # linux/tcp.h; the module `socket` has it from Python 3.12 on


class Stream(TransportSocket):
    """A socket as paramiko wants it, that does not wait for ever and does not take everything.

    Each thread may write with a `patience` of its own: the seconds without progress after which writing fails.
    Until `trust` is called, `LOGIN_BYTES` may come.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        self._allowed: int | None = LOGIN_BYTES
        self._stuck_since: float | None = None
        self._local = threading.local()
        self.heard_at = time.monotonic()
        """When something came last."""
        self.failure = ""
        """Why the stream is of no use any more, if that is known; paramiko does not pass it on."""

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Any:
        """Let this thread's writes fail after `seconds` without progress."""
        before = getattr(self._local, "seconds", _WRITE_SECONDS)
        self._local.seconds = seconds
        try:
            yield
        finally:
            self._local.seconds = before

    def trust(self) -> None:
        self._allowed = None

    def settimeout(self, seconds: float | None) -> None:
        self._base.settimeout(seconds)

    def send(self, data: bytes) -> int:
        try:
            sent = int(self._base.send(data))
        except TimeoutError as error:
            if error.errno == errno.ETIMEDOUT:
                raise self._fail("what was sent is not acknowledged") from error
            now = time.monotonic()
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since < getattr(self._local, "seconds", _WRITE_SECONDS):
                raise
            raise self._fail(f"nothing could be sent for {now - self._stuck_since:.0f} s") from error
        self._stuck_since = None
        return sent

    def recv(self, most: int) -> bytes:
        try:
            data = bytes(self._base.recv(most))
        except TimeoutError as error:
            # Python makes the kernel's ETIMEDOUT the same class as its own time-outs, which are to be tried again.
            if error.errno == errno.ETIMEDOUT:
                raise self._fail("what was sent is not acknowledged") from error
            raise
        self.heard_at = time.monotonic()
        if self._allowed is not None:
            self._allowed -= len(data)
            if self._allowed < 0:
                raise self._fail(f"it sent over {LOGIN_BYTES} bytes before the login")
        return data

    def close(self) -> None:
        self._base.close()

    @property
    def is_closed(self) -> bool:  # type: ignore[override]
        return socket_is_closed(self._base)

    def _fail(self, cause: str) -> OSError:
        self.failure = self.failure or cause
        return ConnectionAbortedError(errno.ECONNABORTED, cause)

    def complaint(self) -> str:
        """What the way itself had to say (a proxy command's standard error), printable; mostly nothing."""
        return ""


class ProxyStream(Stream):
    """The standard input and output of a command (ProxyCommand), which ends with the stream."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        super().__init__(ours)
        self._ending = threading.Lock()
        self._ended_all = threading.Event()
        self._tail = Tail()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def complaint(self) -> str:
        return self._tail.text().strip()

    def close(self) -> None:
        super().close()
        # The transport's thread closes it too.
        with self._ending:
            if self._process.returncode is None:
                self._await_end()
                for number in (signal.SIGTERM, signal.SIGKILL):
                    # Always: what it left behind in its session would hold the pipe that is read here. Before its
                    # number is given back, since the kernel may give it to others then.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self._process.pid, number)
                    self._await_end()
                self._process.wait()
        self._ended_all.set()
        self._reader.join(_PROXY_GRACE_SECONDS)

    def _ended(self) -> bool:
        """Whether the command has ended; its status stays to be collected."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _await_end(self) -> None:
        deadline = time.monotonic() + _PROXY_GRACE_SECONDS
        while not self._ended() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _read(self) -> None:
        assert self._process.stderr
        with self._process.stderr as stderr:
            while True:
                # What has left the session (ssh's ControlPersist) may hold the pipe for ever.
                is_last = self._ended_all.is_set()
                if select.select([stderr], [], [], 0.1)[0]:
                    data = os.read(stderr.fileno(), 65536)
                    if not data:
                        return
                    self._tail.add(data)
                if is_last:
                    return


def dial(host: str, port: int, family: int, deadline: float, lost_after: float) -> Stream:
    """A TCP connection to the first address that answers before `deadline` (time.monotonic).

    The kernel gives it up when what was sent is not acknowledged for `lost_after` seconds. Raises OSError with the
    reason of the last address tried, TimeoutError when time is up.
    """
    problem: OSError = OSError(errno.EADDRNOTAVAIL, "the name has no address")
    addresses = _resolve(host, port, family, deadline)
    for place, (kind, _, protocol, _, goal) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        connection = socket.socket(kind, socket.SOCK_STREAM, protocol)
        try:
            # Leave something for the other addresses.
            connection.settimeout(left / (len(addresses) - place))
            connection.connect(goal)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lost_after * 1000))
            # On a slow link megabytes would otherwise wait in the kernel before whatever is said next.
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            return Stream(connection)
        except OSError as error:
            connection.close()
            problem = error
    raise problem


def _resolve(host: str, port: int, family: int, deadline: float) -> list[Any]:
    """Addresses of a name. The resolver cannot be interrupted, so a thread asks it and is left alone when late."""
    answer: queue.SimpleQueue[list[Any] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.put(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        found = answer.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise TimeoutError(errno.ETIMEDOUT, "the name server does not answer") from None
    asking.join()
    if isinstance(found, OSError):
        raise found
    if isinstance(found, UnicodeError):
        raise ProbeError(f"{host}: no host can have that name") from found
    return found
