# SPDX-License-Identifier: Apache-2.0
"""Contents of deleted files: taken out of CRIU's images, whatever those hold."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from checkpoint.criu.entries import encode_entries
from checkpoint.criu.fields import GhostChunkEntry, GhostFileEntry
from checkpoint.criu.protobuf import Field, Message, WireType
from checkpoint.errors import ProbeFileDamaged
from checkpoint.flat.deleted import write_deleted
from checkpoint.flat.file_names import deleted_name

FILE = stat.S_IFREG | 0o600


def numbers(values: dict[int, int]) -> Message:
    return Message([Field(number, WireType.VARINT, value) for number, value in values.items()])


def contents(folder: Path, image: bytes) -> bytes:
    (folder / "ghost-file-1.img").write_bytes(image)
    write_deleted(SimpleNamespace(folder=folder, removed_files={5: 1}, own=None))  # type: ignore[arg-type]
    return (folder / deleted_name(1)).read_bytes()


def in_pieces(size: int, *pieces: tuple[int, bytes]) -> bytes:
    head = numbers({GhostFileEntry.mode: FILE, GhostFileEntry.chunks: 1, GhostFileEntry.size: size})
    image = encode_entries("ghost-file", [head])
    magic = len(encode_entries("ghost-file", []))
    for offset, data in pieces:
        piece = numbers({GhostChunkEntry.len: len(data), GhostChunkEntry.off: offset})
        image += encode_entries("ghost-file", [piece])[magic:] + data
    return image


def test_in_one_and_in_pieces(tmp_path: Path) -> None:
    whole = encode_entries("ghost-file", [numbers({GhostFileEntry.mode: FILE})]) + b"all of it"
    assert contents(tmp_path, whole) == b"all of it"
    assert contents(tmp_path, in_pieces(9, (1, b"ab"), (6, b"c"))) == b"\0ab\0\0\0c\0\0"


@pytest.mark.parametrize("mode", [0, stat.S_IFDIR, 2**33, 2**64 - 1])
def test_what_is_no_file(mode: int, tmp_path: Path) -> None:
    """Modes of more than 32 bits are nothing that the kernel has."""
    with pytest.raises(ProbeFileDamaged, match="it holds no file"):
        contents(tmp_path, encode_entries("ghost-file", [numbers({GhostFileEntry.mode: mode})]))


@pytest.mark.parametrize("piece", [(9, b"x"), (0, b"0123456789"), (2**63, b"x")])
def test_pieces_outside_the_file(piece: tuple[int, bytes], tmp_path: Path) -> None:
    with pytest.raises(ProbeFileDamaged, match="a piece leaves the file"):
        contents(tmp_path, in_pieces(9, piece))
    with pytest.raises(ProbeFileDamaged, match="a deleted file of"):
        contents(tmp_path, in_pieces(2**40, piece))
