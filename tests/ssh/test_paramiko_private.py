# SPDX-License-Identifier: Apache-2.0
"""The private parts of paramiko that probe/ssh/paramiko_private.py leans on are as they were in the versions tried.

What the parts do for whole connections, the other tests of this folder show: with hostile nodes, agents and real
servers. Here each part is looked at alone, so that a version of paramiko that has changed one names it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from connections import SECONDS, network, node, run, server
from paramiko.agent import AgentSSH
from paramiko.buffered_pipe import BufferedPipe
from sshd import Machine, Server, make_key, wait_until

from probe.ssh import paramiko_private as private
from probe.ssh.interface import Channel
from probe.ssh.reach import connect
from probe.ssh.streams import Stream

__all__ = ["network", "node", "server"]

OVERRIDDEN = {
    private.Transport: (paramiko.Transport, {"_send_message": "self data", "preferred_keys": None}),
    private.Packetizer: (
        paramiko.Packetizer,
        {"read_all": "self n check_rekey", "start_handshake": "self timeout"},
    ),
    private._Inbox: (BufferedPipe, {"feed": "self data"}),
    private._Channel: (
        paramiko.Channel,
        {"_send": "self s m", "_send_eof": "self", "_close_internal": "self"},
    ),
    private.KeyAgent: (AgentSSH, {}),
    private.ConfigReader: (paramiko.SSHConfig, {"lookup": "self hostname", "TOKENS_BY_CONFIG_KEY": None}),
}
"""What our classes have that paramiko's have too, with the parameters of paramiko's (None: no function)."""

CALLED: list[tuple[Callable[..., Any], str]] = [
    (AgentSSH._connect, "self conn"),
    (AgentSSH._close, "self"),
    (paramiko.SSHConfig._lookup, "self hostname options canonical final"),
]


def parameters(function: Callable[..., Any]) -> str:
    return " ".join(inspect.signature(function).parameters)


# -- versions


def test_this_version_was_tried() -> None:
    assert paramiko.__version__ in private.TRIED, (
        f"paramiko {paramiko.__version__} was not tried; run tests/ssh with it, and enter it in TRIED"
    )


def test_no_version_beyond_those_tried_is_installed() -> None:
    """From the first that was tried to the last one's minor version."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (bounds,) = re.findall(r'"paramiko([<>=].*)"', project)
    first, last = (list(map(int, private.TRIED[at].split("."))) for at in (0, -1))
    assert bounds == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"


# -- names


@pytest.mark.parametrize("ours", OVERRIDDEN, ids=lambda one: one.__name__)
def test_what_is_overridden_is_there(ours: type) -> None:
    """A name that paramiko no longer has would be overridden in vain."""
    theirs, names = OVERRIDDEN[ours]
    assert {name for name in vars(ours) if not name.startswith("__") and hasattr(theirs, name)} == set(names)
    for name, expected in names.items():
        if expected is not None:
            assert parameters(getattr(theirs, name)) == expected


@pytest.mark.parametrize(("function", "expected"), CALLED, ids=lambda one: getattr(one, "__qualname__", ""))
def test_what_is_called_is_there(function: Callable[..., Any], expected: str) -> None:
    assert parameters(function) == expected


# -- Transport and Packetizer, with a server made of a socket


@contextlib.contextmanager
def greeted() -> Iterator[tuple[private.Transport, Stream, socket.socket]]:
    """A transport that is told the version of a server, and the server's end of the line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(SECONDS)
        stream = Stream(ours)
        transport = private.Transport(stream, packetizer_class=private.Packetizer)
        transport.wanted_keys = ("rsa-sha2-512", "ssh-ed25519")
        transport.start_client(threading.Event())
        theirs.sendall(b"SSH-2.0-x\r\n")
        try:
            yield transport, stream, theirs
        finally:
            stream.close()
            transport.close()
            transport.join(SECONDS)


def first_packet(server: socket.socket) -> bytes:
    """Payload of the first packet behind the client's version."""
    data = b""
    while b"\r\n" not in data:
        data += server.recv(1)
    size, padding = struct.unpack(">IB", server.recv(5, socket.MSG_WAITALL))
    return server.recv(size - 1, socket.MSG_WAITALL)[: size - 1 - padding]


def test_the_kinds_of_host_key_asked_for() -> None:
    with greeted() as (_, _, server):
        message = paramiko.Message(first_packet(server))
        assert message.get_byte() == b"\x14"
        message.get_bytes(16)
        key_exchange, host_keys = message.get_list(), message.get_list()
        assert "ext-info-c" in key_exchange and host_keys == ["rsa-sha2-512", "ssh-ed25519"]


def test_a_packet_that_is_announced_too_large() -> None:
    with greeted() as (transport, _, server):
        first_packet(server)
        server.sendall(struct.pack(">I", (1 << 30) + 4) + bytes(60))
        transport.join(SECONDS)
        assert "it announced a packet of" in str(transport.get_exception())


def test_the_handshake_has_no_thread_of_its_own() -> None:
    before = set(threading.enumerate())
    with greeted() as (transport, _, server):
        first_packet(server)
        # The version of the server is read behind the start of the handshake.
        wait_until(lambda: transport.remote_version, "the version")
        assert set(threading.enumerate()) - before == {transport}


def test_a_transport_asks_its_socket_whether_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    with greeted() as (transport, stream, server):
        first_packet(server)
        monkeypatch.setattr(private.TransportSocket, "_closed", property(lambda _: asked.set() or stream.is_closed))
        # Its packets stay open: a transport that sees them closed asks no further.
        monkeypatch.setattr(transport.packetizer, "close", lambda: None)
        stopping = threading.Thread(target=transport.stop_thread)
        stopping.start()
        assert asked.wait(SECONDS)
        stream.close()
        stopping.join(SECONDS)


def test_closed_sockets_and_channels() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert not private.socket_is_closed(one)
    assert private.socket_is_closed(one)
    channel = private.bounded(paramiko.Channel(1))
    assert not private.socket_is_closed(channel)
    with channel.lock:
        channel._set_closed()
    assert private.socket_is_closed(channel) and channel.over


# -- channels


@pytest.mark.parametrize("kind", ["output", "errors"])
def test_channels_hold_a_bounded_number_of_bytes(kind: str) -> None:
    channel = private.bounded(paramiko.Channel(1))
    message = paramiko.Message()
    if kind == "errors":
        message.add_int(1)
    message.add_string(bytes(private.WINDOW_BYTES))
    feed = channel._feed if kind == "output" else channel._feed_extended
    for _ in range(2):
        feed(paramiko.Message(message.asbytes()))
    with pytest.raises(paramiko.SSHException, match="it sent more than it was allowed to"):
        feed(paramiko.Message(message.asbytes()))


def test_what_came_before_is_kept() -> None:
    channel = paramiko.Channel(1)
    channel.in_buffer.feed(b"early")
    private.bounded(channel).in_buffer.feed(b" late")
    assert channel.recv(20) == b"early late"


def test_messages_of_a_channel_are_signed(node: Machine, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, end of input and closing, in what really leaves."""
    left = []
    send = private.Transport._send_message

    def note(transport: private.Transport, message: Any) -> None:
        if hasattr(message, "speaker"):
            left.append((message.asbytes()[0], message.is_leave))
        send(transport, message)

    monkeypatch.setattr(private.Transport, "_send_message", note)
    with connect(server.address(), node.options()) as connection, connection.start("cat >/dev/null") as channel:
        channel.send(b"x", SECONDS)
        channel.end_of_input()
        assert channel.exit_status(SECONDS) == 0
    # CHANNEL_DATA, CHANNEL_EOF, CHANNEL_CLOSE
    assert left == [(94, False), (96, False), (97, True)]


@pytest.mark.parametrize("say", [lambda c: c.end_of_input(), lambda c: c.send(b"late", SECONDS)])
def test_words_overtaken_by_the_closing_of_their_channel(
    node: Machine, server: Server, monkeypatch: pytest.MonkeyPatch, say: Callable[[Channel], None]
) -> None:
    """OpenSSH ends the connection over a word on a channel that it knows to be closed."""
    send, speaker, delayed = paramiko.Transport._send_user_message, threading.current_thread(), []
    with connect(server.address(), node.options()) as connection, connection.start("sleep 1") as channel:

        def dawdle(transport: paramiko.Transport, message: paramiko.Message) -> None:
            if threading.current_thread() is speaker:
                delayed.append(message)
                wait_until(lambda: transport._channels.get(channel._raw.chanid) is None, "the end of the channel")
            send(transport, message)

        monkeypatch.setattr(paramiko.Transport, "_send_user_message", dawdle)
        say(channel)
        monkeypatch.undo()
        assert len(delayed) == 1
        assert run(connection, "echo on") == "on"


# -- agent and configuration


def test_an_agent_behind_a_path(tmp_path: Path) -> None:
    place = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(place.exists, "the agent")
            make_key(tmp_path / "key")
            environment = {**os.environ, "SSH_AUTH_SOCK": str(place)}
            subprocess.run(["ssh-add", "-q", tmp_path / "key"], env=environment, check=True)
            agent = private.KeyAgent(str(place), SECONDS)
            (key,) = agent.get_keys()
            assert (tmp_path / "key.pub").read_text().split()[1] == key.get_base64()
            agent.close()
            assert agent.get_keys() == ()
        finally:
            process.kill()


def test_an_agent_that_does_not_answer(tmp_path: Path) -> None:
    place = tmp_path / "agent"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(place))
        silent.listen()
        with pytest.raises(TimeoutError):
            private.KeyAgent(str(place), 0.2)


def looked_up(text: str) -> dict[str, Any]:
    reader = private.ConfigReader()
    reader.parse(text.splitlines())
    return reader.lookup("node")


def test_a_configuration_is_read_in_one_pass() -> None:
    text = "Match user somebody\n Port 5\nHost *\n User somebody\n"
    assert looked_up(text) == {"user": "somebody"}
    # paramiko's own two passes are what is avoided.
    both = paramiko.SSHConfig.from_text(text)
    assert both.lookup("node")["port"] == "5"


def test_values_of_a_configuration_are_as_they_are_written() -> None:
    written = {"hostname": "%h.example", "proxycommand": "nc %h %p", "identityfile": ["~/%u"], "user": "%n"}
    text = "HostName %h.example\nProxyCommand nc %h %p\nIdentityFile ~/%u\nUser %n\n"
    assert looked_up(text) == written
    assert paramiko.SSHConfig.from_text(text).lookup("node") != written
