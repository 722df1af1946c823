# SPDX-License-Identifier: Apache-2.0
"""Parts of recordings of MPI programs, made byte by byte as docs/mpi.md describes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from probe.mpi.parts import VERSION

CALL_BYTES = 64


def part(kind: str, rank: int, ranks: int, number: int, body: bytes, *, version: int = VERSION) -> bytes:
    """A part with its header."""
    words = struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8])
    plain = sum(words) % 2**64
    weighted = sum(word * (n + 1) for n, word in enumerate(words)) % 2**64
    magic = {"inbox": b"PRBINBOX", "calls": b"PRBCALLS"}[kind]
    return struct.pack("<8sIIIIQQQ", magic, version, rank, ranks, number, len(body), plain, weighted) + body


def record_of(function: int, payload: bytes, repeats: int = 0) -> bytes:
    """An answer."""
    return struct.pack("<HHIQ", function, 0, len(payload), repeats) + payload


def inbox_of(folder: Path, rank: int, ranks: int, parts: Sequence[Sequence[bytes]]) -> None:
    """The files of an inbox, of these records."""
    for number, records in enumerate(parts):
        (folder / f"inbox.{rank}.{number:03}").write_bytes(part("inbox", rank, ranks, number, b"".join(records)))


def call(
    function: int, *, peer: int = -1, tag: int = 0, comm: int = 0, other: int = -1, count: int = 0, element: int = 0,
    request: int = 0, computing: int = 0, inside: int = 0, extras: Sequence[int] = (),
) -> bytes:  # fmt: skip
    """A call, with the numbers behind it."""
    head = struct.pack(
        "<HHIiiiiQIIQQQ", function, 0, len(extras), peer, tag, comm, other, count, element, request, computing,
        inside, 0,
    )  # fmt: skip
    return head + struct.pack(f"<{len(extras)}i", *extras) + bytes(len(extras) % 2 * 4)
