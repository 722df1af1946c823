# SPDX-License-Identifier: Apache-2.0
"""A small, strict codec for the protobuf wire format, enough to read and rewrite CRIU images.

A decoded message is the list of its fields as they stood in the input, known or not, so that encoding gives
back the same bytes: an image written by a newer CRIU survives a rewrite of the fields we understand. That is
also why only the shortest form of a varint is taken; protobuf writers make no other, and accepting one would
lose bytes. Groups (wire types 3 and 4) are refused: CRIU has none.

Source: the "Encoding" page of the Protocol Buffers documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_MESSAGE_BYTES = 1 << 28
"""Largest message taken, in bytes. CRIU's largest, mm with 65,530 mappings, is about 4 MB."""

MAX_DEPTH = 32
"""Deepest nesting opened by `Message.messages`. CRIU nests five levels."""

_MAX_FIELD_NUMBER = (1 << 29) - 1
_U64 = (1 << 64) - 1


class WireType:
    """Wire types of the format; 3 and 4 (groups) are refused."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class ProtobufError(ValueError):
    """The bytes are not a protobuf message of the expected shape."""


class Field(NamedTuple):
    """One field as it stands in a message.

    `value` is an unsigned integer (below 2**64) for VARINT, FIXED32 and FIXED64, and bytes for BYTES.
    """

    number: int
    wire_type: int
    value: int | bytes


def encode_varint(value: int) -> bytes:
    """Shortest varint of an unsigned 64-bit integer; ProtobufError outside 0..2**64-1."""
    if not 0 <= value <= _U64:
        raise ProtobufError(f"{value} does not fit an unsigned 64-bit integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """(value, offset behind it) of the varint at `offset`; ProtobufError if cut off, too long or padded."""
    value = 0
    for index in range(10):
        if offset + index >= len(data):
            raise ProtobufError(f"integer at byte {offset} is cut off")
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if index and not byte:
                raise ProtobufError(f"integer at byte {offset} is not in its shortest form")
            if value > _U64:
                break
            return value, offset + index + 1
    raise ProtobufError(f"integer at byte {offset} does not fit 64 bits")


def signed(value: int, bits: int = 64) -> int:
    """An int32/int64 field's value from its unsigned form (negative numbers are written as 64-bit ones)."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def unzigzag(value: int) -> int:
    """A sint32/sint64 field's value from its unsigned form."""
    return (value >> 1) ^ -(value & 1)


def zigzag(value: int) -> int:
    """The unsigned form of a sint64 field's value."""
    return (value << 1) ^ (value >> 63)


@dataclass
class Message:
    """A message: its fields in input order. `depth` is its nesting level, 0 for the outermost."""

    fields: list[Field] = field(default_factory=list)
    depth: int = 0

    @classmethod
    def decode(cls, data: bytes, depth: int = 0) -> Message:
        """The message in `data`, all of which must belong to it; ProtobufError otherwise."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise ProtobufError(f"message of {len(data)} bytes is larger than {MAX_MESSAGE_BYTES}")
        if depth > MAX_DEPTH:
            raise ProtobufError(f"messages are nested deeper than {MAX_DEPTH} levels")
        message = cls(depth=depth)
        offset = 0
        while offset < len(data):
            start = offset
            tag, offset = decode_varint(data, offset)
            number, wire_type = tag >> 3, tag & 7
            if not 1 <= number <= _MAX_FIELD_NUMBER:
                raise ProtobufError(f"field number {number} at byte {start} is out of range")
            value: int | bytes
            if wire_type == WireType.VARINT:
                value, offset = decode_varint(data, offset)
            elif wire_type == WireType.BYTES:
                size, offset = decode_varint(data, offset)
                if size > len(data) - offset:
                    raise ProtobufError(f"field {number} at byte {start} is cut off")
                value = data[offset : offset + size]
                offset += size
            elif wire_type in (WireType.FIXED32, WireType.FIXED64):
                size = 4 if wire_type == WireType.FIXED32 else 8
                if size > len(data) - offset:
                    raise ProtobufError(f"field {number} at byte {start} is cut off")
                value = int.from_bytes(data[offset : offset + size], "little")
                offset += size
            else:
                raise ProtobufError(f"field {number} at byte {start} has unknown wire type {wire_type}")
            message.fields.append(Field(number, wire_type, value))
        return message

    def encode(self) -> bytes:
        """The message's bytes; equal to the input of `decode` while the fields are unchanged."""
        out = bytearray()
        for number, wire_type, value in self.fields:
            if not 1 <= number <= _MAX_FIELD_NUMBER:
                raise ProtobufError(f"field number {number} is out of range")
            out += encode_varint(number << 3 | wire_type)
            if isinstance(value, bytes):
                if wire_type != WireType.BYTES:
                    raise ProtobufError(f"field {number} of wire type {wire_type} cannot hold bytes")
                out += encode_varint(len(value)) + value
            elif wire_type == WireType.VARINT:
                out += encode_varint(value)
            elif wire_type in (WireType.FIXED32, WireType.FIXED64):
                size = 4 if wire_type == WireType.FIXED32 else 8
                if not 0 <= value < 1 << (8 * size):
                    raise ProtobufError(f"{value} does not fit field {number} of {size} bytes")
                out += value.to_bytes(size, "little")
            else:
                raise ProtobufError(f"field {number} of wire type {wire_type} cannot hold an integer")
        return bytes(out)

    def numbers(self) -> set[int]:
        """The numbers of the fields present."""
        return {item.number for item in self.fields}

    def integers(self, number: int) -> list[int]:
        """Every value of a repeated integer field, packed or not; ProtobufError if it holds anything else.

        Packed values are read as varints: CRIU has no packed field of fixed width.
        """
        values: list[int] = []
        for item in self.fields:
            if item.number != number:
                continue
            if isinstance(item.value, int):
                values.append(item.value)
                continue
            offset = 0
            while offset < len(item.value):
                value, offset = decode_varint(item.value, offset)
                values.append(value)
        return values

    def integer(self, number: int, default: int | None = None) -> int:
        """Value of an integer field, the last one if it is repeated, as protobuf demands.

        ProtobufError if it is absent and has no default, or is not an integer.
        """
        for item in reversed(self.fields):
            if item.number == number:
                if not isinstance(item.value, int):
                    raise ProtobufError(f"field {number} is not an integer")
                return item.value
        if default is None:
            raise ProtobufError(f"field {number} is missing")
        return default

    def raw_values(self, number: int) -> list[bytes]:
        """Every value of a bytes, string or message field; ProtobufError if one is an integer."""
        values: list[bytes] = []
        for item in self.fields:
            if item.number == number:
                if not isinstance(item.value, bytes):
                    raise ProtobufError(f"field {number} is an integer, not bytes")
                values.append(item.value)
        return values

    def text(self, number: int, default: str | None = None) -> str:
        """Value of a string field. Names that are not UTF-8 keep their bytes as surrogates (os.fsdecode)."""
        values = self.raw_values(number)
        if values:
            return values[-1].decode("utf-8", "surrogateescape")
        if default is None:
            raise ProtobufError(f"field {number} is missing")
        return default

    def messages(self, number: int) -> list[Message]:
        """Every embedded message of a field; ProtobufError if one does not decode or nests too deep."""
        return [Message.decode(value, self.depth + 1) for value in self.raw_values(number)]

    def message(self, number: int) -> Message | None:
        """The embedded message of a field, None if absent (the last one where there are several)."""
        values = self.raw_values(number)
        return Message.decode(values[-1], self.depth + 1) if values else None

    def set_integer(self, number: int, value: int) -> None:
        """Give a varint field one value: in place of its first occurrence, or at the end."""
        self._set(Field(number, WireType.VARINT, value))

    def set_bytes(self, number: int, value: bytes) -> None:
        """Give a bytes, string or message field one value: in place of its first one, or at the end."""
        self._set(Field(number, WireType.BYTES, value))

    def _set(self, new: Field) -> None:
        kept: list[Field] = []
        placed = False
        for item in self.fields:
            if item.number != new.number:
                kept.append(item)
            elif not placed:
                kept.append(new)
                placed = True
        if not placed:
            kept.append(new)
        self.fields = kept
