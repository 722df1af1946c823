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
    try:
        size = path.stat().st_size
        if size > MAX_IMAGE_BYTES:
            raise damaged(path, f"its {size} bytes are more than {MAX_IMAGE_BYTES}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "the file is missing") from None
    except OSError as error:
        raise StorageError(f"cannot read checkpoint image {path}: {error.strerror}") from error
    head = _magic(kind)
    if not data.startswith(head):
        raise damaged(path, f"it does not start like a {kind} image")
    entries: list[Message] = []
    offset = len(head)
    while offset < len(data):
        if len(data) - offset < _U32.size:
            raise damaged(path, f"entry {len(entries)} is cut off")
        (length,) = _U32.unpack_from(data, offset)
        offset += _U32.size
        if length > min(len(data) - offset, MAX_MESSAGE_BYTES):
            raise damaged(path, f"entry {len(entries)} is cut off")
        try:
            entries.append(Message.decode(data[offset : offset + length]))
        except ProtobufError as error:
            raise damaged(path, f"entry {len(entries)}: {error}") from error
        offset += length
    return entries


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
