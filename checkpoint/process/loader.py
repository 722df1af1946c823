# SPDX-License-Identifier: Apache-2.0
"""Follow which of a program's own images are mapped, as libraries come and go.

The dynamic loader calls an empty function, r_debug.r_brk, before and after it changes the list of libraries: the
rendezvous that debuggers use (glibc <link.h>, struct r_debug). A breakpoint there reports every dlopen and dlclose
before a constructor of the new library has run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.errors import ProgramNotRunnable
from checkpoint.process.maps import chooses_code, image_paths, is_own, load_bias
from checkpoint.process.tracee import Tracee

_DT_NULL, _DT_DEBUG = 0, 21
_PT_DYNAMIC = 2
_AT_PHDR, _AT_PHNUM = 3, 5
_R_BRK_OFFSET = 16
_MOST_DYNAMIC_ENTRIES = 512
# An empty function: only for these may a breakpoint be stepped over by returning to the caller.
_EMPTY_FUNCTIONS = (b"\xc3", b"\xf3\x0f\x1e\xfa\xc3", b"\xf3\xc3")
_BREAKPOINT = b"\xcc"


@dataclass(frozen=True)
class LoadedImage:
    """An image of the program's own and where it lies: [low, high), `bias` added to its link-time addresses."""

    image: ElfImage
    bias: int
    low: int
    high: int


class LoadWatch:
    """The own images of one process, kept up to date. The process must be stopped in every call."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._known: dict[tuple[str, int], LoadedImage] = {}
        self._hook = 0
        self._saved = b""
        self._read: dict[str, ElfImage | None] = {}

    def arm(self) -> bool:
        """Report later loading from now on. False for a static program, or a loader without the hook."""
        address = self._find_hook()
        if not address:
            return False
        code = self._tracee.read(address, 8)
        if not code.startswith(_EMPTY_FUNCTIONS):
            return False
        self._hook, self._saved = address, code[:1]
        self._tracee.write(address, _BREAKPOINT)
        self._tracee.originals.append(self.originals)
        return True

    def originals(self) -> list[tuple[int, bytes]]:
        """Where the breakpoint is, and what had been there."""
        return [(self._hook, self._saved)] if self._hook else []

    def disarm(self) -> None:
        """Take the breakpoint out: a restored process has nobody to report to."""
        if self._hook:
            self._tracee.write(self._hook, self._saved)
            self._hook = 0

    @property
    def armed(self) -> bool:
        return bool(self._hook)

    def step_over(self) -> None:
        """At a breakpoint of ours: return from the loader's empty function."""
        registers = self._tracee.registers()
        if not self._hook or registers.rip != self._hook + 1:
            raise ProgramNotRunnable(
                f"{self._tracee.program.name}: executed a breakpoint instruction of its own at "
                f"{registers.rip - 1:#x}; a program that debugs itself cannot be probed"
            )
        registers.rip = struct.unpack("<Q", self._tracee.read(registers.rsp, 8))[0]
        registers.rsp += 8
        self._tracee.set_registers(registers)

    def new_images(self) -> list[LoadedImage]:
        """Own images mapped since the last call, in address order; forgets those unmapped."""
        maps = self._tracee.mappings()
        present: dict[tuple[str, int], LoadedImage] = {}
        fresh = []
        for path in image_paths(maps):
            image = self._image(path)
            if image is None:
                continue
            try:
                bias = load_bias(image, maps)
            except LookupError:
                continue
            key = (path, bias)
            if key in self._known:
                present[key] = self._known[key]
                continue
            extents = [e for e in maps if e.path == path]
            loaded = LoadedImage(image, bias, min(e.start for e in extents), max(e.end for e in extents))
            present[key] = loaded
            fresh.append(loaded)
        self._known = present
        return fresh

    def known(self) -> list[LoadedImage]:
        """Own images mapped as of the last call of `new_images`."""
        return list(self._known.values())

    def _image(self, path: str) -> ElfImage | None:
        """The parsed image, None where it is not the program's own or not a file we can read (deleted, JIT)."""
        if path not in self._read:
            try:
                own = is_own(path) or (self._tracee.program.choosing and chooses_code(path))
                self._read[path] = read_image(path) if own else None
            except ProgramNotRunnable:
                self._read[path] = None
        return self._read[path]

    def _find_hook(self) -> int:
        """r_debug.r_brk, through DT_DEBUG of the executable; 0 where there is none."""
        tracee = self._tracee
        headers, count = tracee.auxiliary(_AT_PHDR), tracee.auxiliary(_AT_PHNUM)
        if not headers:
            return 0
        table = tracee.read(headers, 56 * count)
        dynamic = bias = None
        for kind, _flags, _offset, vaddr, _paddr, _filesz, _memsz, _align in struct.iter_unpack("<IIQQQQQQ", table):
            if kind == 6:  # PT_PHDR: the table's own link-time address tells the load bias
                bias = headers - vaddr
            elif kind == _PT_DYNAMIC:
                dynamic = vaddr
        if (
            dynamic is None or bias is None
        ):  # static PIE programs have a dynamic section, but neither PT_PHDR nor loader
            return 0
        address = dynamic + bias
        for _ in range(_MOST_DYNAMIC_ENTRIES):
            tag, value = struct.unpack("<qQ", tracee.read(address, 16))
            if tag == _DT_NULL:
                return 0
            if tag == _DT_DEBUG:
                return int(struct.unpack("<Q", tracee.read(value + _R_BRK_OFFSET, 8))[0]) if value else 0
            address += 16
        return 0
