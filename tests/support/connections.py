# SPDX-License-Identifier: Apache-2.0
"""Connections in tests: a node to connect to, what to do with the connection, and a watch over what it leaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd import Machine, Server, machine, wait_until

from checkpoint.errors import NodeUnreachable
from probe.ssh.interface import Channel, Connection, SshOptions

SECONDS = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("ssh") / "machine") as made:
        yield made


@pytest.fixture(scope="module")
def server(node: Machine) -> Server:
    return node.serve()


@pytest.fixture(autouse=True)
def network(node: Machine, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test runs on the machine's network, with a home of its own, and leaves no thread, descriptor or process."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with node.network():
        before = set(threading.enumerate()), descriptors(), set(node.users_processes())
        yield
        wait_until(lambda: not set(threading.enumerate()) - before[0], "threads to end", 5.0)
        assert descriptors() - before[1] == set()
        wait_until(lambda: not set(node.users_processes()) - before[2], "commands on the node to end", 5.0)


def descriptors() -> set[str]:
    """Open sockets and pipes of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(entry.readlink()))
    return {goal for goal in found if goal.startswith(("socket:", "pipe:"))}


def output(channel: Channel) -> bytes:
    parts = []
    while (part := channel.receive(1 << 16, SECONDS)) != b"":
        assert part is not None, "no output in time"
        parts.append(part)
    return b"".join(parts)


def run(connection: Connection, command: str) -> str:
    with connection.start(command) as channel:
        channel.end_of_input()
        said = output(channel).decode()
        assert channel.exit_status(SECONDS) == 0, channel.errors()
        return said.strip()


def refusal(action: Callable[[], object]) -> str:
    """The message that it ends with: one that the terminal can be trusted with."""
    with pytest.raises(NodeUnreachable) as caught:
        action()
    assert str(caught.value).replace("\n", "").isprintable() and len(str(caught.value)) < 2000
    return str(caught.value)


def configured(folder: Path, node: Machine, text: str, **more: object) -> SshOptions:
    path = folder / "config"
    path.write_text(text)
    return node.options(config=path, **more)
