# SPDX-License-Identifier: Apache-2.0
"""Everything that leans on private parts of paramiko, and the versions of paramiko that it was tried with.

No other module overrides paramiko's classes or uses names that paramiko does not document: tests/ssh/test_interface.py
reads the modules for that. Each class here says why it is needed and what of paramiko's source it relies on.
tests/ssh/test_paramiko_private.py fails where paramiko has changed one of these.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import paramiko
from paramiko.agent import AgentSSH
from paramiko.buffered_pipe import BufferedPipe

TRIED: Final = ("4.0.0", "5.0.0", "5.0.1", "5.1.0")
"""Versions of paramiko with which all of tests/ssh passed. A new one is entered after tests/ssh has passed with it,
and moves the bound in pyproject.toml."""

WINDOW_BYTES: Final = 8 << 20
"""How much of a command's output may be on its way to us."""

_MAX_PACKET_BYTES: Final = 1 << 18


class Transport(paramiko.Transport):  # type: ignore[misc]
    """An SSH transport that asks for the kinds of host key that it is told, and for no certificates.

    On a channel it says nothing more after having said that the channel is closed.

    Why: paramiko makes what a channel says under the channel's lock and sends it without, so the answer to the node's
    closing may overtake an end of input. OpenSSH then drops the whole connection; or the channel's number is another
    one's by then. As to keys, paramiko has no public way to say that certificates are not wanted.

    Relies on: every message of a channel goes through `_send_message`, one at a time (`_send_user_message` holds
    clear_to_send_lock, the transport's thread is one); the list of host key algorithms is `preferred_keys`.
    """

    wanted_keys: tuple[str, ...] = ()

    def _send_message(self, message: Any) -> None:
        speaker = getattr(message, "speaker", None)
        if speaker is not None:
            if speaker.has_taken_leave:
                return
            speaker.has_taken_leave = message.is_leave
        super()._send_message(message)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.wanted_keys


class Packetizer(paramiko.Packetizer):  # type: ignore[misc]
    """Packets of bounded size. The deadline of the handshake is kept by whoever waits for it, not by a thread.

    Why: paramiko makes room for whatever size a packet announces, up to 4 GB, before the host has shown its key. Its
    thread for the handshake would outlive a connection that is given up earlier.

    Relies on: `read_message` reads the announced size by one `read_all`; `start_handshake` does nothing but start the
    thread, and `complete_handshake` does without it.
    """

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _MAX_PACKET_BYTES:
            raise paramiko.SSHException(f"it announced a packet of {n} bytes")
        return bytes(super().read_all(n, check_rekey))

    def start_handshake(self, timeout: float) -> None:
        pass


class _Inbox(BufferedPipe):  # type: ignore[misc]
    """What came and was not read yet: a node that does not keep to the window loses its connection.

    Why: paramiko does not check that a node keeps to the window.

    Relies on: `Channel._feed` and `_feed_extended` put what came into `in_buffer` and `in_stderr_buffer` by `feed`, and
    an exception there ends the connection with that reason.
    """

    def feed(self, data: bytes) -> None:
        if len(self) + len(data) > 2 * WINDOW_BYTES:
            raise paramiko.SSHException("it sent more than it was allowed to")
        super().feed(data)


class _Channel(paramiko.Channel):  # type: ignore[misc]
    """A channel whose name is on the messages that must not follow its closing.

    Why: see Transport.

    Relies on: data leaves by `_send`, the end of input by `_send_eof`, the closing by the second message that
    `_close_internal` returns; messages take attributes. `eof_received`, `closed`, `status_event` and `exit_status` are
    paramiko's state of the channel; paramiko's own waits for them end with the connection alone.
    """

    has_taken_leave = False

    def _signed(self, message: Any, is_leave: bool = False) -> Any:
        if message is not None:
            message.speaker, message.is_leave = self, is_leave
        return message

    def _send(self, data: bytes, message: Any) -> int:
        return int(super()._send(data, self._signed(message)))

    def _send_eof(self) -> Any:
        return self._signed(super()._send_eof())

    def _close_internal(self) -> tuple[Any, Any]:
        end_of_input, leave = super()._close_internal()
        return end_of_input, self._signed(leave, is_leave=True)

    @property
    def output_ended(self) -> bool:
        """Whether the node has said that no more output comes."""
        return bool(self.eof_received)

    @property
    def over(self) -> bool:
        """Whether nothing more comes: the output has ended, or the channel is closed."""
        return bool(self.eof_received or self.closed)

    def wait_for_status(self, seconds: float) -> bool:
        """Whether `status` is known by now, or the connection lost; waits for at most `seconds`."""
        return bool(self.status_event.wait(seconds))

    @property
    def status(self) -> int:
        """The command's exit status; negative where the node has told none."""
        return int(self.exit_status)


def bounded(channel: Any) -> Any:
    """The channel, now holding a bounded number of bytes, and silent once closed. Nothing that came already is lost.

    Relies on: instances of paramiko.Channel and BufferedPipe take another class, having no slots.
    """
    # In place: the other thread may be feeding them.
    channel.__class__ = _Channel
    channel.in_buffer.__class__ = channel.in_stderr_buffer.__class__ = _Inbox
    return channel


class TransportSocket:
    """The name by which a transport asks its socket whether it is closed.

    Relies on: `Transport.stop_thread` reads `sock._closed`, which is private to Python's own sockets.
    """

    is_closed: bool

    @property
    def _closed(self) -> bool:
        return self.is_closed


def socket_is_closed(base: Any) -> bool:
    """Whether a socket, or a channel in place of one, is closed. Relies on: both have `_closed`."""
    return bool(base._closed)


class KeyAgent(AgentSSH):  # type: ignore[misc]
    """The agent behind the socket at `path`; asking it takes at most `seconds`. Raises OSError, SSHException.

    Why: paramiko's own agent is that of SSH_AUTH_SOCK, and is waited for without an end.

    Relies on: `_connect` takes a connected socket and asks it for the keys, `_close` closes it.
    """

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds)
            connection.connect(path)
            self._connect(connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()


class ConfigReader(paramiko.SSHConfig):  # type: ignore[misc]
    """Values of an ssh configuration as they are written, found in one pass from top to bottom.

    Why: paramiko's own expansion knows neither all tokens nor the address's port. It makes two passes, where Match sees
    what stands below it; OpenSSH does so only for `Match final` and `canonical`, which are refused.

    Relies on: `_lookup` is one pass; `_expand_variables` replaces what TOKENS_BY_CONFIG_KEY lists, and nothing else.
    """

    TOKENS_BY_CONFIG_KEY: Final[dict[str, list[str]]] = {}

    def lookup(self, hostname: str) -> dict[str, Any]:
        return dict(self._lookup(hostname, final=True))
