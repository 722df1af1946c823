# SPDX-License-Identifier: Apache-2.0
"""Connections to real SSH servers: that they work, and that nothing about them hangs, leaks or trusts too much."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from connections import SECONDS, configured, network, node, output, refusal, run, server
from sshd import GUEST, GUEST_UID, Machine, Server

from checkpoint.errors import NodeUnreachable, ProbeError
from probe.ssh.addresses import parse_address
from probe.ssh.interface import RemoteCommandEnded
from probe.ssh.reach import connect

__all__ = ["network", "node", "server"]


# -- what works


@pytest.mark.parametrize(("user", "uid"), [("root", 0), (GUEST, GUEST_UID)])
def test_commands_run(node: Machine, server: Server, user: str, uid: int) -> None:
    threads = set(threading.enumerate())
    with connect(server.address(user), node.options()) as connection:
        assert connection.peer == f"{user}@127.0.0.1:{server.port}" and connection.notes == ()
        assert run(connection, "id -u; echo $HOME; pwd") == f"{uid}\n/home/{user}\n/home/{user}"
        with connection.start("cat; echo oops >&2; exit 3") as channel:
            data = os.urandom(3_000_001)
            # The window both ways is larger than this.
            channel.send(data, SECONDS)
            channel.end_of_input()
            assert output(channel) == data
            assert (channel.exit_status(SECONDS), channel.errors()) == (3, "oops\n")
    assert set(threading.enumerate()) == threads
    assert "connection is closed" in refusal(lambda: connection.start("true"))


def test_ipv6_and_names(node: Machine, server: Server) -> None:
    for host in ("[::1]", "localhost"):
        with connect(server.address(host=host), node.options()) as connection:
            assert run(connection, "echo here") == "here"


@pytest.mark.parametrize("lines", [(), ("RekeyLimit 1M", "LogLevel DEBUG")], ids=["plain", "rekeyed"])
def test_both_directions_at_once(node: Machine, lines: tuple[str, ...]) -> None:
    """Also while keys are exchanged anew every megabyte, and while the receiver is slow to begin."""
    other = node.serve(*lines)
    block = os.urandom(1 << 20)
    sent, got = hashlib.sha256(), hashlib.sha256()
    with connect(other.address(), node.options()) as connection, connection.start("cat; cat >&2 </dev/null") as channel:

        def send() -> None:
            for _ in range(10):
                channel.send(block, SECONDS)
                sent.update(block)
            channel.end_of_input()

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send)
            time.sleep(0.3)
            while data := channel.receive(1 << 20, SECONDS):
                got.update(data)
            assert data == b""
            sending.result()
        assert got.digest() == sent.digest() and channel.exit_status(SECONDS) == 0
    if lines:
        assert node.log(other.port).count("rekey in after") > 8
    node.stop(other)


def test_several_commands_on_one_connection(node: Machine) -> None:
    # A busy sshd may take a while to count a session as closed.
    patient = node.serve("MaxSessions 12")
    with connect(patient.address(), node.options()) as connection, ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda n: run(connection, f"echo {n}"), range(12))) == [str(n) for n in range(12)]
    node.stop(patient)


def test_eight_nodes_side_by_side(node: Machine) -> None:
    servers = [node.serve(prefix=["taskset", "-c", "0"]) for _ in range(8)]

    def ask(server: Server) -> str:
        with connect(server.address(GUEST), node.options()) as connection:
            return run(connection, "echo $SSH_CONNECTION").split()[3]

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, servers)) == [str(server.port) for server in servers]
    for one in servers:
        node.stop(one)


def test_a_bare_node(node: Machine) -> None:
    bare = node.serve(bare=True)
    with connect(bare.address(GUEST), node.options()) as connection:
        assert run(connection, "command -v python3 || echo none") == "none"
    node.stop(bare)


# -- output, errors and ends of commands


def test_waiting_for_output_ends(node: Machine, server: Server) -> None:
    with connect(server.address(), node.options()) as connection:
        with connection.start("read line; echo got $line") as channel:
            assert channel.receive(10, 0.2) is None
            assert channel.receive(10, 0.0) is None
            assert channel.exit_status(0.2) is None
            channel.send(b"it\n", SECONDS)
            assert output(channel) == b"got it\n"
            assert channel.receive(10, 0.0) == b""
            assert channel.exit_status(SECONDS) == 0
        with connection.start("kill -KILL $$") as channel:
            assert output(channel) == b"" and channel.exit_status(SECONDS) is None


def test_messages_are_kept_short_and_printable(node: Machine, server: Server) -> None:
    """A command that writes 64 MB of complaints is not held up, and fills neither memory nor the terminal."""
    flood = (
        "head -c 64000000 /dev/zero | tr '\\0' x >&2; printf 'a\\033[2Jb\\377\\302\\205c\\r\\nend\\n' >&2; echo done"
    )
    with connect(server.address(), node.options()) as connection, connection.start(flood) as channel:
        assert output(channel) == b"done\n" and channel.exit_status(SECONDS) == 0
        said = channel.errors()
        assert said.endswith("xa?[2Jb\ufffd?c\nend\n") and len(said) < 20000


def test_a_command_that_ends_early(node: Machine, server: Server) -> None:
    with connect(server.address(), node.options()) as connection:
        with connection.start("head -c 5; echo 'no \033oom' >&2; exit 9") as channel:
            with pytest.raises(RemoteCommandEnded, match=r"ended before it had read everything; it said: no \?oom"):
                for _ in range(100):
                    channel.send(bytes(1 << 20), SECONDS)
            assert channel.exit_status(SECONDS) == 9
        # The connection itself is as good as before.
        assert run(connection, "echo on") == "on"


def test_a_command_that_does_not_read(node: Machine, server: Server) -> None:
    with connect(server.address(), node.options()) as connection, connection.start("sleep 600") as channel:
        assert "it took nothing more for 0.5 s" in refusal(lambda: channel.send(bytes(64 << 20), 0.5))
        assert "it took nothing more" in refusal(lambda: channel.receive(10, SECONDS))
    # sshd ends no command whose connection is gone; that is the business of whoever started it.
    for pid, command in node.users_processes().items():
        if command == "sleep 600":
            node.run(["kill", str(pid)])


def test_a_server_that_runs_nothing(node: Machine) -> None:
    closed = node.serve("MaxSessions 0")
    with connect(closed.address(), node.options()) as connection:
        assert "does not run commands" in refusal(lambda: connection.start("true"))
    node.stop(closed)


# -- connections that are lost


def test_a_killed_server(node: Machine, server: Server) -> None:
    for act in ("receive", "send", "exit_status", "start"):
        with connect(server.address(), node.options()) as connection, connection.start("cat") as channel:
            timer = threading.Timer(0.3, node.kill_sessions)
            timer.start()
            with pytest.raises(NodeUnreachable, match=r"127.0.0.1:\d+: the connection was lost \("):
                while True:
                    if act == "receive":
                        assert channel.receive(10, SECONDS) != b""
                    elif act == "send":
                        channel.send(bytes(1 << 16), SECONDS)
                        assert channel.receive(1 << 16, SECONDS)
                    elif act == "exit_status":
                        channel.exit_status(SECONDS)
                    else:
                        run(connection, "true")
            timer.join()


def test_a_node_that_computes_in_silence(node: Machine, server: Server, tmp_path: Path) -> None:
    """For longer than a node may be silent: it still answers when asked whether it is there."""
    options = configured(tmp_path, node, "ServerAliveInterval 1\nServerAliveCountMax 2\n")
    with connect(server.address(), options) as connection, connection.start("cat") as channel:
        assert channel.receive(10, 3.5) is None
        channel.send(b"x", SECONDS)
        assert channel.receive(10, SECONDS) == b"x"


@pytest.mark.parametrize("direction", ["receive", "send"])
def test_a_network_that_goes_away(node: Machine, server: Server, tmp_path: Path, direction: str) -> None:
    options = configured(tmp_path, node, "ServerAliveInterval 1\nServerAliveCountMax 2\n")
    with connect(server.address(), options) as connection, connection.start("cat >/dev/null") as channel:
        # A short break is none.
        node.cut()
        assert channel.receive(10, 0.5) is None
        node.mend()
        channel.send(bytes(1 << 20), SECONDS)
        node.cut()
        try:
            if direction == "receive":
                said = refusal(lambda: channel.receive(10, SECONDS))
                assert "it did not answer for 2 s" in said or "not acknowledged" in said
            else:
                said = refusal(lambda: channel.send(bytes(64 << 20), 1.0))
                assert "nothing could be sent for 1 s" in said or "it took nothing more for 1 s" in said
                assert "connection was lost" in refusal(lambda: channel.send(b"x", SECONDS))
        finally:
            node.mend()
    node.kill_sessions()


def test_a_server_that_falls_silent_behind_a_jump_host(node: Machine, server: Server, tmp_path: Path) -> None:
    """The jump host answers all the time, so only an answer of the node itself tells."""
    behind = node.serve()
    options = configured(
        tmp_path, node, f"ServerAliveInterval 1\nServerAliveCountMax 2\nHost b\n HostName 127.0.0.1\n"
        f" ProxyJump root@127.0.0.1:{server.port}\n",
    )  # fmt: skip
    with connect(parse_address(f"root@b:{behind.port}"), options) as connection, connection.start("cat") as channel:
        stopped = [pid for pid, command in node.processes().items() if command.startswith("sshd: root")]
        serving = [pid for pid in stopped if descends(node, pid, behind)]
        assert serving and len(serving) < len(stopped)
        node.run(["kill", "-STOP", *map(str, serving)])
        assert "it did not answer for 2 s" in refusal(lambda: channel.receive(10, SECONDS))
        node.run(["kill", "-CONT", *map(str, serving)])
    node.stop(behind)


def descends(node: Machine, pid: int, server: Server) -> bool:
    """Whether a process inside comes from this server."""
    listener = int((node.folder / f"{server.port}.pid").read_text())
    while pid > 1 and pid != listener:
        pid = int(node.run(["cat", f"/proc/{pid}/stat"]).rsplit(")", 1)[1].split()[1])
    return pid == listener


def test_a_slow_link(node: Machine, server: Server) -> None:
    node.limit("1mbit")
    try:
        with connect(server.address(), node.options()) as connection, connection.start("sha256sum") as channel:
            data = os.urandom(250_000)
            channel.send(data, SECONDS)
            channel.end_of_input()
            assert output(channel).split()[0].decode() == hashlib.sha256(data).hexdigest()
    finally:
        node.unlimit()


@pytest.mark.alone("compares times of transfers")
def test_it_is_not_much_slower_than_ssh(node: Machine, server: Server) -> None:
    """Within a factor of ten of OpenSSH's own client: a window that is too small, or one byte at a time, is not."""
    size = 64 << 20
    began = time.monotonic()
    with connect(server.address(), node.options()) as connection, connection.start("cat >/dev/null") as channel:
        for _ in range(size >> 20):
            channel.send(bytes(1 << 20), SECONDS)
        channel.end_of_input()
        assert channel.exit_status(SECONDS) == 0
    ours = time.monotonic() - began
    began = time.monotonic()
    ssh = [
        "ssh",
        "-F",
        "/dev/null",
        "-i",
        node.identity,
        "-o",
        f"UserKnownHostsFile={node.known_hosts}",
        "-p",
        server.port,
    ]
    command = list(map(str, [*ssh, "root@127.0.0.1", "cat >/dev/null"]))
    subprocess.run(command, input=bytes(size), check=True, timeout=120)
    assert ours < 10 * (time.monotonic() - began)


# -- no server at all


def test_ports_and_names_without_a_server(node: Machine) -> None:
    options = node.options(connect_seconds=1.0)
    refused, unknown = parse_address("root@127.0.0.1:1"), parse_address("root@nowhere.invalid")
    assert "127.0.0.1:1 refuses connections" in refusal(lambda: connect(refused, options))
    assert "nowhere.invalid" in refusal(lambda: connect(unknown, options))
    # An address without a way to it.
    assert "cannot be reached" in refusal(lambda: connect(parse_address("root@192.0.2.1"), options))


def test_a_port_that_does_not_take_connections(node: Machine) -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        address = parse_address(f"root@127.0.0.1:{full.getsockname()[1]}")
        assert "did not answer within 1 s" in refusal(lambda: connect(address, node.options(connect_seconds=1.0)))


def test_a_configuration_that_cannot_be_honoured(node: Machine, server: Server, tmp_path: Path) -> None:
    options = configured(tmp_path, node, "RevokedHostKeys /etc/revoked\n")
    with pytest.raises(ProbeError, match="RevokedHostKeys"):
        connect(server.address(), options)
