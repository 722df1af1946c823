# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's vDSO that works under any kernel: its functions become plain system calls.

The code in a vDSO reads pages that the kernel keeps up to date beside it; another kernel keeps them elsewhere and
otherwise. The pages of the checkpoint stay at their addresses, since the program knows where its functions are.
"""

from __future__ import annotations

import struct

from checkpoint.binary.syscall_names import call_number

CALLS = {name: call_number(name) for name in ("clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres")}
"""System calls by what the functions are called, with or without `__vdso_`. All take the same arguments."""

_PT_DYNAMIC, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_HASH, _DT_GNU_HASH = 2, 5, 6, 10, 4, 0x6FFFFEF5
_STT_FUNC = 2
_SYMBOL_BYTES = 24
_ENOSYS = 38
# __vdso_getrandom asks for the layout of its state with a length of -1 (r8), which no system call answers.
_GETRANDOM = bytes.fromhex("4983f8ff 7408 b83e010000 0f05 c3 b8daffffff c3")
_UNKNOWN = b"\xb8" + struct.pack("<i", -_ENOSYS) + b"\xc3"  # mov $-ENOSYS, %eax; ret: the C library asks the kernel


class NotAVdso(ValueError):
    """The bytes are no vDSO that we can read."""


def _system_call(number: int) -> bytes:
    return b"\xb8" + struct.pack("<I", number) + b"\x0f\x05\xc3"  # mov $number, %eax; syscall; ret


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


def with_system_calls(image: bytes) -> bytes:
    """`image` with every exported function replaced by its system call, or by ENOSYS where there is none like it."""
    out = bytearray(image)
    for name, offset in functions(image).items():
        plain = name.removeprefix("__vdso_")
        code = _system_call(CALLS[plain]) if plain in CALLS else _GETRANDOM if plain == "getrandom" else _UNKNOWN
        if offset + len(code) > len(out):
            raise NotAVdso(f"{name} lies outside of it")
        out[offset : offset + len(code)] = code
    return bytes(out)
