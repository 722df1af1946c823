# SPDX-License-Identifier: Apache-2.0
"""Readers of analytic models: Aspen files, Durango's configuration, traces of simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aspen_models import LULESH, MACHINE
from durango_files import LISTING_6, LISTING_7, rounds_in

from checkpoint.errors import ProbeError
from fuzzing.reader import Reader
from probe.models.expressions import Settings
from probe.models.machine import read_machine
from probe.models.reader import read_model
from probe.models.walk import flow_of
from probe.simulation.configured import read_configured, read_network
from probe.simulation.foreign_trace import read_trace
from probe.simulation.networks import network_of
from probe.simulation.traffic import traffic

_TRACE = (
    b"0 init\n0 irecv -555 3 4 0\n0 isend 0 3 4 0\n0 waitall 2\n0 compute 1e6\n0 allreduce 1 0 0\n0 isend 0 1 7 6\n"
    b"0 recv 0 -444 7 6\n0 wait 0 0 1\n0 finalize\n"
)


def _read_application(data: bytes, folder: Path) -> Any:
    (folder / "a.aspen").write_bytes(data)
    flow = flow_of(read_model(folder / "a.aspen"), Settings({}))
    found = traffic(flow, (2, 2, 1), network_of("torus:2x2"))
    assert sum(found.loads.values()) == found.byte_hops
    return None


def _read_machine(data: bytes, folder: Path) -> Any:
    (folder / "a.aspen").write_bytes(data)
    assert read_machine(read_model(folder / "a.aspen"), Settings({})).static_watts >= 0
    return None


def _read_rounds(data: bytes, folder: Path) -> Any:
    path = rounds_in(folder)
    path.write_bytes(data)
    found = read_configured(path)
    assert found.rounds and found.pings.requests > 0
    return None


def _read_network(data: bytes, folder: Path) -> Any:
    (folder / "a.conf").write_bytes(data)
    network, links, _ = read_network(folder / "a.conf")
    assert network.nodes > 0 and links.bandwidth > 0
    return None


def _read_trace(data: bytes, folder: Path) -> Any:
    (folder / "rank.txt").write_bytes(data)
    (folder / "index.txt").write_text("rank.txt\n")
    found = read_trace(folder / "index.txt")
    assert found.ranks == 1 and all(size >= 0 for _, _, size in found.sent)
    return None


def _texts(*texts: str) -> Sequence[bytes]:
    return [text.encode() for text in texts]


READERS = (
    Reader("aspen application", lambda _: [LULESH.read_bytes()], _read_application, (ProbeError,)),
    Reader("aspen machine", lambda _: [MACHINE.read_bytes()], _read_machine, (ProbeError,)),
    Reader("durango", lambda _: _texts(LISTING_6), _read_rounds, (ProbeError,)),
    Reader("codes", lambda _: _texts(LISTING_7), _read_network, (ProbeError,)),
    Reader("trace of ranks", lambda _: [_TRACE], _read_trace, (ProbeError,)),
)
