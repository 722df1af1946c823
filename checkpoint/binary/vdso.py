# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel's vDSO, which tell the time without a system call, and where they are (vdso(7))."""

from __future__ import annotations

import struct

_PT_DYNAMIC, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_HASH, _DT_GNU_HASH = 2, 5, 6, 10, 4, 0x6FFFFEF5
_STT_FUNC = 2
_SYMBOL_BYTES = 24


class NotAVdso(ValueError):
    """The bytes are no vDSO that we can read."""


def functions(image: bytes) -> dict[str, int]:
    """Offsets of the exported functions of the vDSO in `image`. Raises NotAVdso."""
    try:
        return dict(_functions(image))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise NotAVdso(f"the vDSO cannot be read: {error}") from error


def _functions(image: bytes) -> list[tuple[str, int]]:
    if image[:5] != b"\x7fELF\x02":
        raise NotAVdso("no 64-bit ELF image")
    header_offset, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    dynamic: dict[int, int] = {}
    for number in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", image, header_offset + 56 * number)
        if kind == _PT_DYNAMIC:
            entries = (struct.unpack_from("<QQ", image, at) for at in range(offset, offset + size, 16))
            dynamic = {tag: value for tag, value in entries if tag}
    strings, symbols = dynamic.get(_DT_STRTAB, 0), dynamic.get(_DT_SYMTAB, 0)
    if not strings or not symbols:
        raise NotAVdso("it has no symbols")
    found = []
    for number in range(1, _symbol_count(image, dynamic)):
        name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", image, symbols + _SYMBOL_BYTES * number)
        if info & 15 == _STT_FUNC and section:
            start = strings + name
            found.append((image[start : image.index(b"\0", start)].decode("ascii"), value))
    return found


def _symbol_count(image: bytes, dynamic: dict[int, int]) -> int:
    if _DT_HASH in dynamic:
        return int(struct.unpack_from("<I", image, dynamic[_DT_HASH] + 4)[0])
    # DT_GNU_HASH does not say how many there are; the string table follows the symbols in every vDSO so far.
    count = (dynamic[_DT_STRTAB] - dynamic[_DT_SYMTAB]) // _SYMBOL_BYTES
    if not 0 < count < 1000:
        raise NotAVdso("its symbols cannot be counted")
    return count
