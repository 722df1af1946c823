# SPDX-License-Identifier: Apache-2.0
"""The wire codec gives back what it read, and says ProtobufError to everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.criu.protobuf import (
    MAX_DEPTH,
    Field,
    Message,
    ProtobufError,
    WireType,
    decode_varint,
    encode_varint,
    signed,
    unzigzag,
    zigzag,
)

U64 = st.integers(0, 2**64 - 1)
NUMBERS = st.integers(1, 2**29 - 1)
FIELDS = st.lists(
    st.one_of(
        st.builds(Field, NUMBERS, st.just(WireType.VARINT), U64),
        st.builds(Field, NUMBERS, st.just(WireType.FIXED64), U64),
        st.builds(Field, NUMBERS, st.just(WireType.FIXED32), st.integers(0, 2**32 - 1)),
        st.builds(Field, NUMBERS, st.just(WireType.BYTES), st.binary(max_size=300)),
    ),
    max_size=8,
)


@given(FIELDS)
def test_encoding_then_decoding_gives_the_same_fields(fields: list[Field]) -> None:
    assert Message.decode(Message(fields).encode()).fields == fields


@given(st.binary(max_size=60))
def test_whatever_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        message = Message.decode(data)
    except ProtobufError:
        return
    assert message.encode() == data


@given(FIELDS)
def test_every_cut_is_either_an_error_or_a_prefix_of_the_fields(fields: list[Field]) -> None:
    data = Message(fields).encode()
    for cut in range(len(data)):
        try:
            message = Message.decode(data[:cut])
        except ProtobufError:
            continue
        assert message.fields == fields[: len(message.fields)]
        assert len(message.fields) < len(fields)


@given(FIELDS, st.data())
def test_flipped_bits_end_in_the_declared_error_or_another_message(fields: list[Field], data: st.DataObject) -> None:
    encoded = bytearray(Message([*fields, Field(1, WireType.BYTES, b"x")]).encode())
    position = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[position // 8] ^= 1 << position % 8
    try:
        message = Message.decode(bytes(encoded))
        for number in message.numbers():
            message.messages(number)
    except ProtobufError:
        return
    assert message.encode() == encoded


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80", "cut off"),
        (b"\x80\x00", "shortest form"),
        (b"\xff" * 9 + b"\x02", "64 bits"),
        (b"\xff" * 11, "64 bits"),
    ],
)
def test_bad_varints_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(ProtobufError, match=says):
        decode_varint(data, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x00\x01", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x0c", "wire type 4"),
        (b"\x0e", "wire type 6"),
        (b"\x0a\x02a", "cut off"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "cut off"),
        (b"\x0d\x00\x00\x00", "cut off"),
        (b"\x09" + bytes(7), "cut off"),
        (encode_varint(2**32 << 3), "out of range"),
    ],
)
def test_bad_fields_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(ProtobufError, match=says):
        Message.decode(data)


def test_nesting_is_bounded() -> None:
    data = b""
    for _ in range(MAX_DEPTH + 2):
        data = Message([Field(1, WireType.BYTES, data)]).encode()
    message: Message | None = Message.decode(data)
    with pytest.raises(ProtobufError, match="nested deeper"):
        while message is not None:
            message = message.message(1)


def test_a_message_larger_than_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoint.criu.protobuf.MAX_MESSAGE_BYTES", 10)
    with pytest.raises(ProtobufError, match="larger than 10"):
        Message.decode(b"\x08\x01" * 6)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_forms(value: int) -> None:
    assert unzigzag(zigzag(value)) == value
    assert zigzag(value) < 2**64
    assert signed(value & (2**64 - 1)) == value


def test_accessors() -> None:
    nested = Message([Field(3, WireType.VARINT, 7)])
    packed = b"".join(encode_varint(n) for n in (1, 300))
    message = Message(
        [
            Field(1, WireType.VARINT, 5),
            Field(1, WireType.VARINT, 6),
            Field(1, WireType.BYTES, packed),
            Field(2, WireType.BYTES, nested.encode()),
            Field(4, WireType.BYTES, b"/caf\xe9"),
        ]
    )
    assert message.integers(1) == [5, 6, 1, 300]
    assert Message(message.fields[:2]).integer(1) == 6
    assert message.integer(9, 4) == 4
    inner = message.message(2)
    assert inner is not None and inner.integer(3) == 7 and inner.depth == 1
    assert message.message(9) is None
    assert message.text(4).encode("utf-8", "surrogateescape") == b"/caf\xe9"
    assert message.text(9, "none") == "none"
    for access in (lambda: message.integer(1), lambda: message.integer(9), lambda: message.text(9)):
        with pytest.raises(ProtobufError):
            access()
    with pytest.raises(ProtobufError, match="not bytes"):
        message.raw_values(1)


def test_setting_a_field_keeps_the_others_in_place() -> None:
    message = Message([Field(1, 0, 1), Field(2, 0, 2), Field(1, 0, 3), Field(9, 2, b"unknown")])
    message.set_integer(1, 8)
    message.set_bytes(5, b"new")
    assert message.fields == [Field(1, 0, 8), Field(2, 0, 2), Field(9, 2, b"unknown"), Field(5, 2, b"new")]


@pytest.mark.parametrize(
    "bad",
    [
        Field(1, 0, -1),
        Field(1, 0, 2**64),
        Field(1, 5, 2**32),
        Field(1, 1, -1),
        Field(0, 0, 1),
        Field(2**29, 0, 1),
        Field(1, 0, b"bytes"),
        Field(1, 2, 3),
    ],
)
def test_what_does_not_fit_is_not_encoded(bad: Field) -> None:
    with pytest.raises(ProtobufError):
        Message([bad]).encode()
