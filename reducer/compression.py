# SPDX-License-Identifier: Apache-2.0
"""Compress members of a probe: packing on the building side, unpacking in bounded memory on any node.

Reading gzip needs the standard library alone; isal reads it about twice as fast where it is installed. zstd
(RFC 8878) is read by Python 3.14 itself, or by one of two packages.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Callable, Protocol  # noqa: UP035 (subscribed at run time on Python 3.8)

from checkpoint.errors import ToolMissing
from reducer.member_table import Member, damaged

_zlib: Any
try:
    from isal import isal_zlib as _zlib
except ImportError:
    import zlib as _zlib

Sink = Callable[[bytes], Any]


CHUNK = 1 << 18
"""Most bytes that are unpacked at once, but for the zstandard package."""

_GZIP_LEVEL = 2
"""isal's level: 2 packs as fast as 0 and as small as 3."""

_ZSTD_LEVEL = 3
_WINDOW_LOG = 23
"""zstd frames may ask for a window of any size; 8 MB is what RFC 8878 (3.1.1.1.2) has every decoder support."""

_TWINS = ("compression.zstd", "backports.zstd")
"""Python's own module (3.14) and the same one for older versions."""

_PACKAGE = "zstandard"
_PACKAGE_INPUT = 1 << 10
"""The package's decoder knows no limit of its output: 128 KB may come out of every four bytes, so 32 MB of these."""


class Corrupt(Exception):
    """Stored bytes that are not what their compression makes; the text follows the name of the member."""


class Unpacker(Protocol):
    """One member's stored bytes in, its contents out, a bounded piece at a time. Raises Corrupt."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Contents that these stored bytes make; to be used up before the next call."""

    def finish(self) -> Iterator[bytes]:
        """What is left when all stored bytes are in."""

    def ended(self) -> bool:
        """Whether that was one whole stream and nothing behind it."""


class Packer(Protocol):
    """One member's contents in, its stored bytes out."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def packed_size(data: memoryview) -> int:
    """Bytes that `data` takes on its own, for comparison with others: quick, not small."""
    return len(_zlib.compress(data, 1))


def deflated(data: bytes) -> bytes:
    """`data` as a stream of zlib's (RFC 1950)."""
    packed: bytes = _zlib.compress(data, _GZIP_LEVEL)
    return packed


def inflated_block(packed: bytes, most: int) -> bytes:
    """What `deflated` made this of, `most` bytes of it at most. Raises Corrupt."""
    stream = _zlib.decompressobj()
    return _guarded(lambda data: stream.decompress(data, most), packed, (zlib.error, _zlib.error))


def check_packing(compression: str) -> None:
    """Raise ToolMissing if this machine cannot pack with `compression`: before a long build, not at its end."""
    packer(compression)


def packer(compression: str) -> Packer:
    """A packer for one member. ToolMissing if its library is not there."""
    if compression == "gzip":
        # 31: the largest window, and gzip's header and trailer around it.
        made: Packer = _zlib.compressobj(_GZIP_LEVEL, _zlib.DEFLATED, 31)
        return made
    module = _first_of(_PACKAGE, *_TWINS)
    if module is None:
        raise ToolMissing("packing with zstd needs the zstandard package: install it, or leave --compress zstd out")
    compressor = module.ZstdCompressor(level=_ZSTD_LEVEL)
    made = compressor.compressobj() if hasattr(compressor, "compressobj") else compressor
    return made


def unpacker(compression: str, what: str) -> Unpacker:
    """An unpacker for one member; `what` names it. ToolMissing if nothing here reads its compression."""
    if compression == "none":
        return _Stored()
    if compression == "gzip":
        return _Gzip(_zlib)
    if (module := _first_of(*_TWINS)) is not None:
        return _Zstd(module)
    if (module := _first_of(_PACKAGE)) is not None:
        return _ZstandardPackage(module)
    raise ToolMissing(
        f"{what} is compressed with zstd, which this Python cannot read: install the zstandard package, use Python "
        "3.14, or pack the probe again where zstd is known (`probe trim --phases 1000 --compress gzip`)"
    )


def _first_of(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class _Stored:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> Iterator[bytes]:
        return iter(())

    def ended(self) -> bool:
        return True


class _Gzip:
    """By a module with the interface of zlib."""

    def __init__(self, module: Any) -> None:
        self._stream = module.decompressobj(wbits=31)
        self._errors = (zlib.error, module.error)

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream.eof:
                raise Corrupt("goes on behind its end")
            yield self._unpack(data)
            data = self._stream.unconsumed_tail

    def finish(self) -> Iterator[bytes]:
        # Output may still be pending when all input is in.
        while not self._stream.eof and (data := self._unpack(b"")):
            yield data

    def ended(self) -> bool:
        return bool(self._stream.eof and not self._stream.unused_data)

    def _unpack(self, data: bytes) -> bytes:
        return _guarded(lambda data: self._stream.decompress(data, CHUNK), data, self._errors)


class _Zstd:
    """By Python's own module or its twin."""

    def __init__(self, module: Any) -> None:
        limit = {module.DecompressionParameter.window_log_max: _WINDOW_LOG}
        self._stream = module.ZstdDecompressor(options=limit)
        self._errors = (module.ZstdError,)

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream.eof and data:
            raise Corrupt("goes on behind its end")
        while True:
            yield _guarded(lambda data: self._stream.decompress(data, CHUNK), data, self._errors)
            data = b""
            if self._stream.eof or self._stream.needs_input:
                return

    def finish(self) -> Iterator[bytes]:
        return iter(())

    def ended(self) -> bool:
        return bool(self._stream.eof and not self._stream.unused_data)


class _ZstandardPackage:
    """By the zstandard package."""

    def __init__(self, module: Any) -> None:
        self._stream = module.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG).decompressobj()
        self._errors = (module.ZstdError,)

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _PACKAGE_INPUT):
            if self._stream.eof:
                raise Corrupt("goes on behind its end")
            piece = data[start : start + _PACKAGE_INPUT]
            yield _guarded(self._stream.decompress, piece, self._errors)

    def finish(self) -> Iterator[bytes]:
        return iter(())

    def ended(self) -> bool:
        return bool(self._stream.eof and not self._stream.unused_data)


def _guarded(unpack: Callable[[bytes], bytes], data: bytes, errors: tuple[type[Exception], ...]) -> bytes:
    try:
        return unpack(data)
    except errors as error:
        raise Corrupt(f"does not inflate ({error})") from error


def inflated(read: Callable[[int], bytes], member: Member, name: str) -> Iterator[bytes]:
    """The contents of `member` in pieces; `read` stands at its first stored byte.

    What came may be used only when the iterator has ended: the checksum is known then. Never gives more than the
    size the table states. ProbeFileDamaged if anything is not as the table says, ToolMissing if nothing here reads
    the member's compression; `name` is the probe's, for errors.
    """
    digest = hashlib.sha256()
    unpack = unpacker(member.compression, f"{name}: member {member.name}")
    room, left = member.raw_size, member.stored_size

    def checked(pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal room
        try:
            for data in pieces:
                if len(data) > room:
                    raise damaged(name, f"member {member.name} is larger than {member.raw_size} bytes")
                room -= len(data)
                yield data
        except Corrupt as error:
            raise damaged(name, f"member {member.name} {error}") from error

    while left:
        piece = read(min(left, CHUNK))
        if not piece:
            raise damaged(name, f"it is cut off in member {member.name}")
        left -= len(piece)
        digest.update(piece)
        yield from checked(unpack.feed(piece))
    yield from checked(unpack.finish())
    if digest.hexdigest() != member.sha256:
        raise damaged(name, f"the checksum of member {member.name} is wrong")
    if room or not unpack.ended():
        raise damaged(name, f"member {member.name} does not inflate to {member.raw_size} bytes")


def inflate_member(read: Callable[[int], bytes], member: Member, sink: Sink, name: str) -> None:
    """Pass the contents of `member` to `sink` in pieces, to be used only after this returns; see `inflated`."""
    for piece in inflated(read, member, name):
        sink(piece)
