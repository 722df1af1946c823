# SPDX-License-Identifier: Apache-2.0
"""Readers of recordings of MPI programs: answers, calls and what is played of them, platforms of SimGrid."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from mpi_packed import packed_probe
from mpi_parts import call, inbox_of, part, record_of

from checkpoint.errors import ProbeError
from fuzzing.mutation import damaged
from fuzzing.reader import Reader
from probe.mpi.library.calls import names
from probe.mpi.parts import BEGIN, END, LAYOUT, check_inbox
from probe.mpi.platforms import hosts_of
from probe.mpi.play import write_play
from probe.mpi.probes.packing import unpack
from probe.mpi.trace import Agreement, read_calls

_HEADER_BYTES = 48
_NUMBER = {name: number for number, name in enumerate(names())}
_PLATFORM = (
    b'<platform version="4.1"><zone id="z" routing="Full"><host id="a" speed="1Gf"/><cluster id="c" prefix="n" '
    b'suffix="" radical="0-3" speed="1Gf" bw="1GBps" lat="1us"/></zone></platform>'
)


def _inbox(folder: Path) -> Sequence[bytes]:
    layout = record_of(LAYOUT, struct.pack("<QqQqQ", 1, 64, 1, 0, 8))
    records = [record_of(BEGIN, bytes(64)), record_of(_NUMBER["Wtime"], bytes(8), 5), layout, record_of(END, b"")]
    inbox_of(folder, 0, 1, [records])
    return [(folder / "inbox.0.000").read_bytes()]


def _calls(_: Path) -> Sequence[bytes]:
    made = [
        call(_NUMBER["Comm_split"], other=2, extras=[0, 1]),
        call(_NUMBER["Irecv"], peer=1, request=0, count=4, element=8),
        call(_NUMBER["Send"], comm=2, peer=1, count=4, element=8, computing=1000),
        call(_NUMBER["Waitall"], comm=-1, extras=[0, 1, 5]),
        call(_NUMBER["Allgatherv"], comm=2, count=1, element=8, extras=[8, 8]),
        call(_NUMBER["Sendrecv"], peer=1, other=1, count=1, element=8, extras=[3, 8]),
        call(_NUMBER["Finalize"]),
        call(END),
    ]
    return [part("calls", 0, 2, 0, b"".join(made))]


def _damaged_behind_its_sums(random: Random, seed: bytes, others: Sequence[bytes]) -> bytes:
    """Half of the inputs have sums that fit, as if a recorder had written them."""
    made = damaged(random, seed, others)
    if random.random() < 0.5 or len(made) < _HEADER_BYTES:
        return made
    kind = "inbox" if seed.startswith(b"PRBINBOX") else "calls"
    return part(kind, 0, 2 if kind == "calls" else 1, 0, made[_HEADER_BYTES:])


def _read_inbox(data: bytes, folder: Path) -> Any:
    (folder / "inbox.0.000").write_bytes(data)
    return check_inbox(folder, 0)


def _read_calls(data: bytes, folder: Path) -> Any:
    (folder / "calls.0.000").write_bytes(data)
    return write_play(read_calls(folder, 0), folder, agreement=Agreement())


def _read_platform(data: bytes, folder: Path) -> Any:
    (folder / "platform.xml").write_bytes(data)
    return hosts_of(folder / "platform.xml")


def _packed(folder: Path) -> Sequence[bytes]:
    return [packed_probe(folder).read_bytes()]


def _read_packed(data: bytes, folder: Path) -> Any:
    (folder / "app.mpiprobe").write_bytes(data)
    (folder / "out").mkdir()
    unpack(folder / "app.mpiprobe", folder / "out")
    return sorted((path.name, path.read_bytes()) for path in (folder / "out").iterdir())


READERS = (
    Reader("answers of a rank", _inbox, _read_inbox, (ProbeError,), _damaged_behind_its_sums),
    Reader("calls of a rank", _calls, _read_calls, (ProbeError,), _damaged_behind_its_sums),
    Reader("probe of an mpi program", _packed, _read_packed, (ProbeError,), exact=True),
    Reader("platform of simgrid", lambda _: [_PLATFORM], _read_platform, (ProbeError,)),
)
