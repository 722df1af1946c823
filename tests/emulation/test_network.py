# SPDX-License-Identifier: Apache-2.0
"""Network traffic is emulated to endpoints that the user names, by exactly as many bytes, and to no other."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from made_usage import made_usage

import probe
from checkpoint.compiled import built
from checkpoint.errors import NodeUnreachable, ProbeError
from probe.emulation.kernels import OPTIONS, SOURCES
from probe.emulation.plan import SECONDS, EmulateOptions, make_plan
from probe.emulation.usage import AMOUNT, Column, Usage, save_usage


class Peer:
    """A TCP server for one connection: takes bytes, or sends without end; `moved` counts them."""

    def __init__(self, sends: bool, most: int = 1 << 60, family: int = socket.AF_INET) -> None:
        self._sends, self._most = sends, most
        self._listening = socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)
        self.port = self._listening.getsockname()[1]
        self.moved = self.connections = 0
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with self._listening, suppress(OSError):
            connection, _ = self._listening.accept()
            self.connections += 1
            with connection:
                while self.moved < self._most:
                    piece = connection.send(bytes(1 << 16)) if self._sends else len(connection.recv(1 << 16))
                    if not piece:
                        return
                    self.moved += piece

    def end(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def peer(sends: bool, most: int = 1 << 60, family: int = socket.AF_INET) -> Iterator[Peer]:
    made = Peer(sends, most, family)
    try:
        yield made
    finally:
        made.end()


def talking(samples: int, sent: float, received: float) -> Usage:
    usage = made_usage(samples, cpu_user=0.001, cpu_kernel=0.0, read=0.0, written=0.0)
    more = {"net_sent": sent, "net_received": received}
    usage.header.columns.update({name: Column(AMOUNT, "B", "made") for name in more})
    values = {**usage.values, **{name: np.full(samples, value) for name, value in more.items()}}
    return Usage(usage.header, usage.end, values)


def saved(usage: Usage, tmp_path: Path) -> Path:
    save_usage(usage, tmp_path / "a.usage")
    return tmp_path / "a.usage"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_as_many_bytes_as_profiled(tmp_path: Path, family: int) -> None:
    path = saved(talking(5, 100_001.0, 70_000.0), tmp_path)
    host = "[::1]" if family == socket.AF_INET6 else "127.0.0.1"
    with peer(False, family=family) as taker, peer(True, family=family) as giver:
        options = EmulateOptions(
            equal=SECONDS, folder=tmp_path, send_to=f"{host}:{taker.port}", receive_from=f"{host}:{giver.port}"
        )
        result = probe.emulate(path, options)
    assert taker.moved == 500_005 and giver.moved >= 350_000
    totals = {row["name"]: row for row in result.totals}
    assert totals["net_sent"]["emulated"] == 500_005 and totals["net_received"]["emulated"] == 350_000
    assert not any("bytes of" in warning for warning in result.warnings)


def test_nobody_is_talked_to_who_is_not_named(tmp_path: Path) -> None:
    """The profile names an endpoint; so does it with somebody listening there."""
    with peer(False) as taker:
        usage = talking(2, 5000.0, 7000.0)
        endpoint = usage.header.endpoints[0].__class__("127.0.0.1", taker.port, 14000.0, 10000.0)
        usage = Usage(
            usage.header.__class__(**{**vars(usage.header), "endpoints": (endpoint,)}), usage.end, usage.values
        )
        result = probe.emulate(saved(usage, tmp_path), EmulateOptions(equal=SECONDS, folder=tmp_path))
    assert taker.connections == 0
    assert result.warnings[:2] == (
        "10000 bytes of net_sent are not emulated: no endpoint is named with --send-to",
        "14000 bytes of net_received are not emulated: no endpoint is named with --receive-from",
    )
    assert "net_sent" not in {row["name"] for row in result.totals}


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_an_endpoint_where_nobody_listens(tmp_path: Path) -> None:
    options = EmulateOptions(equal=SECONDS, folder=tmp_path, send_to=f"127.0.0.1:{unused_port()}")
    with pytest.raises(NodeUnreachable, match="network: connecting to where bytes are sent: Connection refused; see"):
        probe.emulate(saved(talking(2, 1.0, 1.0), tmp_path), options)


def test_an_endpoint_that_goes_away(tmp_path: Path) -> None:
    with peer(True, most=1 << 16) as giver:
        options = EmulateOptions(equal=SECONDS, folder=tmp_path, receive_from=f"127.0.0.1:{giver.port}")
        with pytest.raises(NodeUnreachable, match="network: receiving: Connection reset"):
            probe.emulate(saved(talking(2, 0.0, 1e6), tmp_path), options)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("host", "not an endpoint; write HOST:PORT"), ("me@host:80", "not an endpoint; write HOST:PORT"),
        ("host:0", "the port must be"), ("a b:80", "no host can have that name"),
        ("no-such-host.invalid:80", "the endpoint's name has no address"),
    ],
)  # fmt: skip
def test_what_is_no_endpoint(tmp_path: Path, endpoint: str, said: str) -> None:
    path = saved(talking(2, 1.0, 1.0), tmp_path)
    for options in (EmulateOptions(send_to=endpoint), EmulateOptions(receive_from=endpoint)):
        with pytest.raises(ProbeError, match=said):
            make_plan(talking(2, 1.0, 1.0), options, {})
        with pytest.raises(ProbeError, match=said):
            probe.emulate_on(path, ["node"], options)


def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    usage = talking(4, 200_000.0, 100_000.0)
    for checks in ("address,undefined", "thread"):
        program = built("emulator", SOURCES, (*OPTIONS, "-g", f"-fsanitize={checks}"), place=tmp_path)
        with peer(False) as taker, peer(True) as giver:
            options = EmulateOptions(
                equal=SECONDS, folder=tmp_path, threads=1, send_to=f"127.0.0.1:{taker.port}",
                receive_from=f"127.0.0.1:{giver.port}",
            )  # fmt: skip
            text = make_plan(usage, options, {}).text(options)
            done = subprocess.run([str(program), "run"], input=text, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert taker.moved == 800_000
