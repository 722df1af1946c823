# SPDX-License-Identifier: Apache-2.0
"""Step a traced process, and find the addresses that its instructions use."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from iced_x86 import Decoder, Instruction, Mnemonic, OpKind, Register, RegisterExt

from checkpoint import compiled
from checkpoint.flow.flow import Window
from checkpoint.process.ptrace import Registers
from checkpoint.process.waiting import last_processor

_FIELDS = [field[0] for field in Registers._fields_]
_COLUMN = {name: at for at, name in enumerate(_FIELDS)}
_LONGEST = 15
_RELATIVE = 1 << 63
"""Set in the noted address of code in an area of stubs, whose rest is a distance: areas lie elsewhere elsewhere."""

_SOURCE_KINDS = (OpKind.MEMORY_SEG_RSI, OpKind.MEMORY_SEG_ESI, OpKind.MEMORY_SEG_SI)
_GOAL_KINDS = (OpKind.MEMORY_ESRDI, OpKind.MEMORY_ESEDI, OpKind.MEMORY_ESDI, OpKind.MEMORY_SEG_RDI)
_SEGMENTS = {Register.FS: "fs_base", Register.GS: "gs_base"}
_NAMES = {
    value: name.lower() for name, value in vars(Register).items() if name.isupper() and name.lower() in _COLUMN
}  # fmt: skip

Areas = Sequence[tuple[int, int]]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiled.STEP.made()), use_errno=True)
    status = ctypes.POINTER(ctypes.c_int)
    library.step.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_double, ctypes.c_void_p, status]
    library.step.restype = ctypes.c_long
    return library


def prepare() -> None:
    """Compile and load what steps. Raises ToolMissing, StorageError."""
    _library()


def step(pid: int, most: int, until: float) -> tuple[npt.NDArray[np.uint64], int]:
    """Make up to `most` steps: registers before each of them, shape (steps, 27), in the order of struct
    user_regs_struct; the status of a stop that was no step, or 0. Raises TimeoutError where a step does not end until
    `until` (time.monotonic), OSError."""
    noted = np.zeros((most, len(_FIELDS)), dtype=np.uint64)
    status = ctypes.c_int()
    ours = os.sched_getaffinity(0)
    # On one processor with it: waking another one takes many times as long as a step.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {last_processor(pid)})
    made = _library().step(pid, most, until, noted.ctypes.data, ctypes.byref(status))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, ours)
    if made < 0:
        raise OSError(ctypes.get_errno(), f"process {pid} cannot be stepped: {os.strerror(ctypes.get_errno())}")
    return noted[:made], status.value


def window_of(noted: npt.NDArray[np.uint64], read: Callable[[int, int], bytes], stubs: Areas) -> Window:
    """The window that these steps are; `read` gives the process's memory, `stubs` are areas [start, end) of ours."""
    places: npt.NDArray[np.uint64] = noted[:, _COLUMN["rip"]]
    used = np.zeros(len(noted), dtype=np.uint64)
    unknown = np.zeros(len(noted), dtype=np.bool_)
    for at in np.unique(places).tolist():
        rows = np.flatnonzero(places == at)
        address = _address(_decoded(read, at), noted[rows])
        if address is None:
            unknown[rows] = True
        else:
            used[rows] = address
    return Window(without_area(places, stubs), noted[:, _COLUMN["rsp"]].copy(), used, unknown)


def without_area(places: npt.NDArray[np.uint64], stubs: Areas) -> npt.NDArray[np.uint64]:
    """These addresses of code, those in areas of stubs told by their distance from the area's begin."""
    found: npt.NDArray[np.uint64] = places.copy()
    for number, (start, end) in enumerate(stubs):
        inside = (places >= start) & (places < end)
        found[inside] = places[inside] - np.uint64(start) + np.uint64(_RELATIVE | number << 48)
    return found


def calls_in(noted: npt.NDArray[np.uint64], read: Callable[[int, int], bytes]) -> Iterator[tuple[int, Registers]]:
    """(address, registers) of the system calls among these steps, in order."""
    places = noted[:, _COLUMN["rip"]]
    calling = [at for at in np.unique(places).tolist() if (i := _decoded(read, at)) and i.mnemonic == Mnemonic.SYSCALL]
    for row in np.flatnonzero(np.isin(places, np.array(calling, dtype=np.uint64))).tolist():
        yield int(places[row]), Registers.from_buffer_copy(noted[row].tobytes())


def _decoded(read: Callable[[int, int], bytes], at: int) -> Instruction | None:
    for size in (_LONGEST, 4096 - at % 4096):
        try:
            return Decoder(64, read(at, min(size, _LONGEST)), ip=at).decode()
        except OSError:
            continue
    return None


def _address(i: Instruction | None, noted: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64] | None:
    """What the instruction uses at each of these steps, 0 without an operand in memory; None where registers other than
    general ones say it (gathers, scatters)."""
    if i is None:
        return None
    total = np.zeros(len(noted), dtype=np.uint64)
    kinds = [i.op_kind(at) for at in range(i.op_count)]
    if any(kind in _SOURCE_KINDS for kind in kinds):
        total = total + noted[:, _COLUMN["rsi"]]
    if any(kind in _GOAL_KINDS for kind in kinds):
        # Two addresses in one word: they are only ever compared.
        total = total * np.uint64(3) + noted[:, _COLUMN["rdi"]]
    if OpKind.MEMORY not in kinds:
        return total
    if i.memory_base in (Register.RIP, Register.EIP):
        return total
    total = total + np.uint64(i.memory_displacement & (2**64 - 1))
    for register, scale in ((i.memory_base, 1), (i.memory_index, i.memory_index_scale)):
        if register == Register.NONE:
            continue
        name = _NAMES.get(RegisterExt.full_register(register))
        if name is None:
            return None
        total = total + noted[:, _COLUMN[name]] * np.uint64(scale)
    if i.segment_prefix in _SEGMENTS:
        total = total + noted[:, _COLUMN[_SEGMENTS[i.segment_prefix]]]
    return total
