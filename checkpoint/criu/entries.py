# SPDX-License-Identifier: Apache-2.0
"""The container every CRIU image shares: a magic, then entries of a 32-bit size and a protobuf message.

Source: CRIU 4.1, images of version 1.1. The inventory has one magic number of its own; every other image has
the common one first and then its kind's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from checkpoint.criu.protobuf import MAX_MESSAGE_BYTES, Message, ProtobufError
from checkpoint.errors import ProbeFileDamaged, StorageError

COMMON_MAGIC = 0x54564319

MAGIC = {
    "inventory": 0x58313116,
    "pstree": 0x50273030,
    "core": 0x55053847,
    "ids": 0x54432030,
    "mm": 0x57492820,
    "pagemap": 0x56084025,
    "fdinfo": 0x56213732,
    "files": 0x56303138,
    "fs": 0x51403912,
    "remap-fpath": 0x59133954,
    "ghost-file": 0x52583605,
    "pipes-data": 0x56453709,
    "sk-queues": 0x56264026,
}
"""Magic number of each kind of image read here, by the part of its file name before the first identifier."""

MAX_IMAGE_BYTES = 1 << 30
"""Largest image of this container taken, in bytes; pages images are not in it."""

_U32 = struct.Struct("<I")


def damaged(path: Path, problem: str) -> ProbeFileDamaged:
    """The error for an image that is not what CRIU writes."""
    return ProbeFileDamaged(
        f"checkpoint image {path} is damaged or of an unsupported CRIU: {problem}; take the checkpoint again"
    )


def read_entries(path: Path, kind: str) -> list[Message]:
    """All entries of the image at `path`, which must be of `kind` (a key of MAGIC).

    ProbeFileDamaged if it is missing, of another kind, cut off or does not decode; StorageError if the file
    cannot be read.
    """
    reader = EntryReader(path, kind)
    entries: list[Message] = []
    while not reader.at_end:
        entries.append(reader.entry())
    return entries


class EntryReader:
    """The image at `path`, of `kind`, from front to back: entries, and the bytes that follow some. Errors as
    `read_entries`."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._data, self._count = path, _contents(path), 0
        head = _magic(kind)
        if not self._data.startswith(head):
            raise damaged(path, f"it does not start like a {kind} image")
        self._offset = len(head)

    @property
    def at_end(self) -> bool:
        return self._offset == len(self._data)

    def entry(self) -> Message:
        """The next entry."""
        (length,) = _U32.unpack(self.raw(_U32.size))
        data = self.raw(min(length, MAX_MESSAGE_BYTES + 1))
        try:
            entry = Message.decode(data)
        except ProtobufError as error:
            raise damaged(self._path, f"entry {self._count}: {error}") from error
        self._count += 1
        return entry

    def raw(self, size: int) -> bytes:
        """The next `size` bytes as they are."""
        if size > len(self._data) - self._offset:
            raise damaged(self._path, f"entry {self._count} is cut off")
        self._offset += size
        return self._data[self._offset - size : self._offset]

    def rest(self) -> bytes:
        """All that is left."""
        return self.raw(len(self._data) - self._offset)


def _contents(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_IMAGE_BYTES:
            raise damaged(path, f"its {size} bytes are more than {MAX_IMAGE_BYTES}")
        return path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except OSError as error:
        raise StorageError(f"cannot read checkpoint image {path}: {error.strerror}") from error


def encode_entries(kind: str, entries: Sequence[Message]) -> bytes:
    """The image of `kind` (a key of MAGIC) that holds `entries`."""
    out = bytearray(_magic(kind))
    for entry in entries:
        encoded = entry.encode()
        out += _U32.pack(len(encoded)) + encoded
    return bytes(out)


def write_entries(path: Path, kind: str, entries: Sequence[Message]) -> None:
    """Put the image of `kind` that holds `entries` at `path`, whole or not at all (then StorageError)."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(encode_entries(kind, entries))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"cannot write checkpoint image {path}: {error.strerror}") from error


def _magic(kind: str) -> bytes:
    own = _U32.pack(MAGIC[kind])
    return own if kind == "inventory" else _U32.pack(COMMON_MAGIC) + own
