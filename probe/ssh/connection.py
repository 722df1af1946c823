# SPDX-License-Identifier: Apache-2.0
"""A connection to a node, and commands on it, by paramiko: what probe/ssh/interface.py asks for. Every wait ends."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Final, NoReturn

import paramiko

from checkpoint.errors import NodeUnreachable
from probe.foreign_text import Tail
from probe.ssh.addresses import Address
from probe.ssh.interface import RemoteCommandEnded, SshOptions
from probe.ssh.paramiko_private import WINDOW_BYTES, bounded
from probe.ssh.streams import Stream
from probe.ssh.transport import CLOSE_SECONDS, Session, open_sessions, reason

_PIECE_BYTES: Final = 1 << 15
_SLICE_SECONDS: Final = 0.1


class ParamikoConnection:
    """A node that the user is logged in to; made by `connect`. Closing it ends all channels and threads."""

    def __init__(self, address: Address, sessions: list[Session], notes: list[str]) -> None:
        self._address = address
        self._sessions = sessions
        self._last = sessions[-1]
        self._channels: set[ParamikoChannel] = set()
        self._closing = threading.Event()
        self.peer = self._last.settings.peer
        """USER@HOST:PORT that the configuration made of the address."""
        self.notes = tuple(notes)
        """What the user should know, such as a host key that was added."""
        self._pulse = threading.Thread(target=self._ask_for_life, name=f"pulse of {address.text}", daemon=True)
        self._pulse.start()

    def __enter__(self) -> ParamikoConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, command: str) -> ParamikoChannel:
        """Run a shell command on the node; no terminal, standard streams are the channel's. Raises NodeUnreachable."""
        limit = self._last.settings.connect_seconds
        transport = self._last.transport
        try:
            with self._last.stream.patience(limit):
                raw = bounded(transport.open_session(window_size=WINDOW_BYTES, timeout=limit))
                # paramiko waits for the answer as long as the connection lives.
                impatience = threading.Timer(limit, raw.close)
                impatience.daemon = True
                impatience.start()
                try:
                    raw.exec_command(command)
                finally:
                    impatience.cancel()
                    impatience.join()
        except (paramiko.SSHException, EOFError, OSError) as error:
            if isinstance(error, EOFError) or not transport.is_active():
                raise self.lost(error) from error
            raise NodeUnreachable(
                f"{self._address.text}: the node does not run commands ({reason(error)}); "
                f"try `ssh {self._address.text} true`, and look into its log"
            ) from error
        channel = ParamikoChannel(self, raw, self._last.stream)
        self._channels.add(channel)
        return channel

    def close(self) -> None:
        """End the connection; what was sent and not yet taken by the command may be lost. May be repeated."""
        self._closing.set()
        for session in reversed(self._sessions):
            session.close()
        for channel in list(self._channels):
            channel.close()
        self._pulse.join(CLOSE_SECONDS)

    def check(self) -> None:
        """Raise NodeUnreachable when the connection is known to be lost, or nothing was heard for too long."""
        if not self._last.transport.is_active():
            raise self.lost(None)
        limit = self._last.settings.alive_seconds * self._last.settings.alive_count
        if time.monotonic() - self._last.stream.heard_at > limit:
            raise self.lost(None, f"it did not answer for {limit:g} s")

    def forget(self, channel: ParamikoChannel) -> None:
        """Called by a channel that is closed."""
        self._channels.discard(channel)

    def lost(self, error: BaseException | None, cause: str = "") -> NodeUnreachable:
        """The error to raise for a connection that has ended, or is of no use any more and is ended by this."""
        if self._closing.is_set():
            return NodeUnreachable(f"{self._address.text}: the connection is closed; connect again")
        self._last.stream.failure = self._last.stream.failure or cause
        self._last.close()
        error = self._last.transport.get_exception() or error
        return NodeUnreachable(
            f"{self._address.text}: the connection was lost ({reason(error, self._last.stream)}); "
            "check the node and the network, and run again"
        )

    def _ask_for_life(self) -> None:
        """Have the node answer something whenever it was silent: any answer will do, `heard_at` tells."""
        interval = self._last.settings.alive_seconds
        while not self._closing.wait(min(interval, 1.0)) and self._last.transport.is_active():
            if time.monotonic() - self._last.stream.heard_at >= interval:
                with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                    self._last.transport.global_request("keepalive@openssh.com", wait=True)


class ParamikoChannel:
    """A command that runs on the node. One thread may send while another one receives. Times are in seconds."""

    def __init__(self, connection: ParamikoConnection, raw: Any, stream: Stream) -> None:
        self._connection = connection
        self._raw = raw
        self._stream = stream
        self._tail = Tail()
        raw.settimeout(_SLICE_SECONDS)
        self._reader = threading.Thread(target=self._read_errors, name="standard error of a node", daemon=True)
        self._reader.start()

    def __enter__(self) -> ParamikoChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: bytes, seconds: float) -> None:
        """Send all of `data` to the command's standard input.

        Raises NodeUnreachable after `seconds` without progress or when the connection is lost, RemoteCommandEnded
        when nobody reads any more.
        """
        offset = 0
        deadline = time.monotonic() + seconds
        with self._stream.patience(seconds):
            while offset < len(data):
                try:
                    sent = self._raw.send(data[offset : offset + _PIECE_BYTES])
                except TimeoutError:
                    self._connection.check()
                    if time.monotonic() >= deadline:
                        raise self._connection.lost(None, f"it took nothing more for {seconds:g} s") from None
                    continue
                except (paramiko.SSHException, EOFError, OSError) as error:
                    self._raise_ended(error)
                if not sent:
                    self._raise_ended(None)
                offset += sent
                deadline = time.monotonic() + seconds
        # Dropped in silence by paramiko when the connection ended meanwhile.
        self._connection.check()

    def end_of_input(self) -> None:
        """Close the command's standard input."""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            self._raw.shutdown_write()

    def receive(self, most: int, seconds: float) -> bytes | None:
        """At most `most` bytes of the command's output: b"" at its end, None when nothing came within `seconds`.

        Raises NodeUnreachable when the connection is lost, also when the end of the output is missing.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                data = bytes(self._raw.recv(most))
            except TimeoutError:
                self._connection.check()
                if time.monotonic() >= deadline:
                    return None
                continue
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise self._connection.lost(error) from error
            if not data and not self._raw.output_ended and self._dying():
                raise self._connection.lost(None)
            return data

    def errors(self) -> str:
        """The end of what the command wrote to standard error, printable; complete once it has ended."""
        if self._raw.over:
            self._reader.join(CLOSE_SECONDS)
        return self._tail.text()

    def exit_status(self, seconds: float) -> int | None:
        """The command's exit status; None when it has not ended within `seconds`, or was ended by a signal.

        Raises NodeUnreachable when the connection is lost before.
        """
        deadline = time.monotonic() + seconds
        while not self._raw.wait_for_status(_SLICE_SECONDS):
            self._connection.check()
            if time.monotonic() >= deadline:
                return None
        status: int = self._raw.status
        if status >= 0:
            return status
        if self._dying():
            raise self._connection.lost(None)
        return None

    def close(self) -> None:
        """Give the command up: its streams end; whether it does is its own affair. May be repeated."""
        with (
            self._stream.patience(CLOSE_SECONDS),
            contextlib.suppress(paramiko.SSHException, EOFError, OSError),
        ):
            self._raw.close()
        self._reader.join(CLOSE_SECONDS)
        self._connection.forget(self)

    def _read_errors(self) -> None:
        """Take standard error as it comes, so that the command never waits for us because of it."""
        while True:
            try:
                data = self._raw.recv_stderr(_PIECE_BYTES)
            except TimeoutError:
                continue
            except (paramiko.SSHException, EOFError, OSError):
                return
            if not data:
                return
            self._tail.add(data)

    def _dying(self) -> bool:
        """Whether the connection is lost. Channels are told first, so a closed one waits for what the thread does."""
        transport = self._raw.get_transport()
        transport.join(5 * _SLICE_SECONDS)
        return not transport.is_active()

    def _raise_ended(self, error: BaseException | None) -> NoReturn:
        # A failed write ends the connection; a channel that the node has closed says so in other ways.
        if isinstance(error, EOFError) or self._dying():
            raise self._connection.lost(error) from error
        said = self.errors().strip()
        raise RemoteCommandEnded(
            f"{self._connection.peer}: the command on the node ended before it had read everything"
            + (f"; it said: {said}" if said else "")
        ) from error


def connect(address: Address, options: SshOptions) -> ParamikoConnection:
    """Connect to a node, through its jump hosts if it has any, check every host key, and log in.

    Raises NodeUnreachable with the reason and what to do, ProbeError for a configuration that cannot be honoured,
    StorageError for files that cannot be read.
    """
    return ParamikoConnection(address, *open_sessions(address, options))
