# SPDX-License-Identifier: Apache-2.0
"""Nodes that are none, or do not keep to the protocol: refused by a clear message, in bounded time and memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest
from connections import SECONDS, network, node, output, refusal, server
from sshd import Machine, make_key

from probe.ssh.addresses import parse_address
from probe.ssh.interface import Connection
from probe.ssh.reach import connect

__all__ = ["network", "node", "server"]


@contextlib.contextmanager
def impostor(act: Callable[[socket.socket], None]) -> Iterator[int]:
    """A listening port whose connections are treated by `act`; yields its number."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)

        def accept() -> None:
            while not done.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listening.accept()
                    with connection:
                        connection.settimeout(SECONDS)
                        act(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            done.set()
            thread.join()


def wait_for_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def flood(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(data)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (wait_for_end, "no SSH server answered at root@127.0.0.1"),
        (lambda c: c.close(), "no SSH session could be opened"),
        (lambda c: c.sendall(b"HTTP/1.1 400 Bad\x1b[2J Request\r\n"), "no SSH session could be opened"),
        (lambda c: flood(c, b"x" * 65536), "it sent over 1048576 bytes before the login"),
        (lambda c: flood(c, b"welcome\x1b[2J\r\n" * 1000), "no SSH session could be opened"),
        (lambda c: flood(c, b"SSH-2.0-x\x1b[2J\r\n" + bytes(65536)), "no SSH session could be opened"),
        (lambda c: flood(c, b"SSH-2.0-x\r\n" + struct.pack(">I", (1 << 30) + 4) + bytes(64)), "it announced a packet"),
        (lambda c: c.sendall(b"SSH-1.5-old\r\n"), "no SSH session could be opened"),
    ],
    ids=["silent", "closing", "web", "one endless line", "endless lines", "nonsense", "giant packet", "old"],
)  # fmt: skip
def test_impostors(node: Machine, act: Callable[[socket.socket], None], said: str) -> None:
    began = time.monotonic()
    # Whoever speaks is to be found out by what he says, on a busy machine too.
    patience = 1.5 if act is wait_for_end else SECONDS / 2
    with impostor(act) as port:
        address = parse_address(f"root@127.0.0.1:{port}")
        assert said in refusal(lambda: connect(address, node.options(connect_seconds=patience)))
    assert time.monotonic() - began < SECONDS


class _Host(paramiko.ServerInterface):
    """Lets everybody in; `answer` says when requests to run a command are answered."""

    def __init__(self, answer: threading.Event) -> None:
        self.answer = answer
        self.asked = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.asked.set()
        return self.answer.wait(SECONDS)


@contextlib.contextmanager
def logged_in(
    node: Machine,
    tmp_path: Path,
    act: Callable[[paramiko.Transport, paramiko.Channel], None],
    answer: threading.Event | None = None,
) -> Iterator[Connection]:
    """A connection to a server that behaves like one up to the first command, and as `act` says from then on."""
    make_key(tmp_path / "host")
    public = " ".join((tmp_path / "host.pub").read_text().split()[:2])

    at_once = threading.Event()
    at_once.set()

    def serve(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "host")))
        host = _Host(answer or at_once)
        try:
            transport.start_server(server=host)
            channel = transport.accept(SECONDS)
            host.asked.wait(SECONDS)
            act(transport, channel)
            transport.join(SECONDS)
        except (EOFError, OSError, paramiko.SSHException):
            pass
        finally:
            transport.close()
            transport.join()

    with impostor(serve) as port:
        known = tmp_path / "known"
        known.write_text(f"[127.0.0.1]:{port} {public}\n")
        address = parse_address(f"root@127.0.0.1:{port}")
        with connect(address, node.options(known_hosts=known, connect_seconds=1.5)) as connection:
            yield connection


def send_data(transport: paramiko.Transport, channel: paramiko.Channel, size: int, kind: int = 94) -> None:
    """Output of the command (94) or its standard error (95), whatever the client's window."""
    message = paramiko.Message()
    message.add_byte(bytes([kind]))
    message.add_int(channel.remote_chanid)
    if kind == 95:
        message.add_int(1)
    message.add_string(bytes(size))
    transport._send_message(message)


def test_output_that_nobody_asked_for(node: Machine, tmp_path: Path) -> None:
    def act(transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        for _ in range(4000):
            send_data(transport, channel, 32768)

    with logged_in(node, tmp_path, act) as connection, connection.start("anything") as channel:
        assert "it sent more than it was allowed to" in refusal(lambda: channel.exit_status(SECONDS))


def test_a_giant_packet_after_the_login(node: Machine, tmp_path: Path) -> None:
    with (
        logged_in(node, tmp_path, lambda t, c: send_data(t, c, 1 << 19)) as connection,
        connection.start("anything") as channel,
    ):
        assert "it announced a packet of" in refusal(lambda: output(channel))


def test_a_command_that_is_never_answered(node: Machine, tmp_path: Path) -> None:
    answer = threading.Event()
    with logged_in(node, tmp_path, lambda t, c: None, answer) as connection:
        began = time.monotonic()
        said = refusal(lambda: connection.start("anything"))
        # Not because of the server, which would have said no after this time.
        assert time.monotonic() - began < SECONDS and "does not run commands" in said
        answer.set()


def test_channels_that_the_node_wants_to_open(node: Machine, tmp_path: Path) -> None:
    refused = []

    def act(transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        for kind in ("session", "x11", "auth-agent@openssh.com", "forwarded-tcpip"):
            try:
                transport.open_channel(kind, ("127.0.0.1", 1), ("127.0.0.1", 1), timeout=SECONDS)
            except paramiko.SSHException:
                refused.append(kind)
        channel.sendall(b"done")
        channel.close()

    with logged_in(node, tmp_path, act) as connection, connection.start("anything") as channel:
        assert output(channel) == b"done"
    assert refused == ["session", "x11", "auth-agent@openssh.com", "forwarded-tcpip"]
