# SPDX-License-Identifier: Apache-2.0
"""Names and numbers of the fields in CRIU's images, against what the installed CRIU says of its own messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile

from checkpoint.criu import fields
from checkpoint.criu.tool import find_criu

# protobuf-c.h: ProtobufCMessageDescriptor and ProtobufCFieldDescriptor, which the program has one of per message.
_MAGIC = struct.pack("<QQ", 0x28AAEEF9, 0)[:8]
_MESSAGE, _FIELD = struct.Struct("<8xQ24x8xI4xQ"), struct.Struct("<QI60x")


class _Image:
    """A program's memory as it is once the loader has moved nothing: addresses count from zero."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            elf = ELFFile(file)
            loaded = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
            self.memory = bytearray(max(s["p_vaddr"] + s["p_memsz"] for s in loaded))
            for segment in loaded:
                self.memory[segment["p_vaddr"] : segment["p_vaddr"] + segment["p_filesz"]] = segment.data()
            for section in elf.iter_sections():
                if section["sh_type"] == "SHT_RELA":
                    for entry in section.iter_relocations():
                        if entry["r_info_type"] == 8:  # R_X86_64_RELATIVE
                            struct.pack_into("<Q", self.memory, entry["r_offset"], entry["r_addend"])

    def text(self, address: int) -> str:
        return self.memory[address : self.memory.index(0, address)].decode("ascii", "replace")

    def messages(self) -> Iterator[tuple[str, dict[str, int]]]:
        """(name, numbers of the fields by their names) of each message."""
        at = self.memory.find(_MAGIC)
        while at >= 0:
            name, count, first = _MESSAGE.unpack_from(self.memory, at)
            found = (_FIELD.unpack_from(self.memory, first + _FIELD.size * n) for n in range(count))
            yield self.text(name), {self.text(field): number for field, number in found}
            at = self.memory.find(_MAGIC, at + 8)


@cache
def criu_messages() -> dict[str, dict[str, int]]:
    path = next(Path(part) for part in reversed(find_criu().command) if Path(part).name == "criu")
    return dict(_Image(path).messages())


def our_messages() -> dict[str, dict[str, int]]:
    found = {}
    for ours in vars(fields).values():
        if isinstance(ours, type):
            name = (ours.__doc__ or "").split()[0]
            assert name.replace("_", "") == ours.__name__.lower()
            found[name] = {field: number for field, number in vars(ours).items() if not field.startswith("_")}
    found["user_x86_regs_entry"].update((name, number) for number, name in enumerate(fields.REGISTERS, 1))
    return found


def test_names_and_numbers_are_those_of_criu() -> None:
    theirs = criu_messages()
    assert len(theirs) > 100
    wrong = []
    for message, ours in our_messages().items():
        known = dict(theirs[message])
        if message == "pagemap_entry" and known["nr_pages"] == 2:
            # Up to CRIU 4.1, which has no wide number of pages.
            known |= {"compat_nr_pages": 2, "nr_pages": 5}
        wrong += [f"{message}.{field} is {known.get(field)}" for field, n in ours.items() if known.get(field) != n]
    assert wrong == []
    assert len(our_messages()) == sum(isinstance(one, type) for one in vars(fields).values()) > 25
