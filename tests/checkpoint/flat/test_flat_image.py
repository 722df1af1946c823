# SPDX-License-Identifier: Apache-2.0
"""The flat phase image: the same layout in Python and C, what goes in comes out, and damage is seen."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.errors import ProbeFileDamaged
from checkpoint.flat import control
from checkpoint.flat import image as flat_image
from checkpoint.flat.image import (
    REPEATED,
    FlatImage,
    Header,
    Kind,
    Mapping,
    MemoryObject,
    OpenDescriptor,
    Pending,
    Piece,
    Run,
    Ticks,
    decode,
    encode,
)
from checkpoint.flat.vdso import _TABLE_BYTES, CLOCKS
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore import direct_agent
from checkpoint.restore import direct_restore as direct

SOURCES = Path(flat_image.__file__).parents[1] / "restorer"
C_NAMES = {
    "Table": "table", "Mapping": "mapping", "Run": "run", "Patch": "patch", "OpenDescriptor": "descriptor",
    "Action": "sigaction_entry", "Registers": "registers", "Layout": "mm", "Limit": "limit", "Timer": "timer",
    "Header": "header", "Thread": "thread", "Report": "report", "MemoryObject": "object", "Piece": "piece",
    "Pending": "pending", "Tables": "tables", "Ticks": "ticks",
}  # fmt: skip

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
kinds = st.integers(1, Kind.SIGNALS)
names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def images(draw: st.DrawFn) -> FlatImage:
    image = FlatImage(Header(park=draw(u64), umask=draw(u32), xstate=draw(u64)))
    image.header.registers.ip = draw(u64)
    image.mappings = [Mapping(*row) for row in draw(st.lists(st.tuples(*[u64] * 4, *[u32] * 4), max_size=5))]
    image.runs = [Run(a, n) for a, n in draw(st.lists(st.tuples(u64, st.integers(1, 1000)), max_size=5))]
    image.patches = [(a, bytes([b]) * 4096) for a, b in draw(st.lists(st.tuples(u64, st.integers(0, 255)), max_size=2))]
    image.descriptors = [OpenDescriptor(n, k) for n, k in draw(st.lists(st.tuples(u32, kinds), max_size=5))]
    image.contents = draw(st.lists(st.tuples(u32, st.binary(max_size=50)), max_size=4))
    image.watches = [
        OpenDescriptor(n, Kind.WATCH, e, d, f)
        for n, e, d, f in draw(st.lists(st.tuples(u32, u64, u64, u32), max_size=4))
    ]
    for name in ("stamps", "touch_order", "calls"):
        setattr(image, name, draw(st.lists(u64, max_size=5)))
    for name in ("files", "written", "opened"):
        setattr(image, name, draw(st.lists(names, max_size=4)))
    image.header.cwd = image.string(draw(names))
    if draw(st.booleans()):
        small = st.integers(0, flat_image.USER_END)
        image.objects = [MemoryObject(*row) for row in draw(st.lists(st.tuples(small, u64, u32, u32), max_size=3))]
        image.pieces = [Piece(*row) for row in draw(st.lists(st.tuples(u32, u32, u64, u64), max_size=5))]
        image.present = [Run(a, n) for a, n in draw(st.lists(st.tuples(u64, u64), max_size=3))]
        image.pending = [Pending(*row) for row in draw(st.lists(st.tuples(u32, u32), max_size=3))]
        image.contents_file = draw(u64)
    return image


def parts(image: FlatImage) -> dict[str, object]:
    found: dict[str, object] = {
        n: [bytes(r) for r in getattr(image, n)] for n in ("mappings", "runs", "descriptors", "watches")
    }
    found |= {
        n: getattr(image, n)
        for n in ("contents", "stamps", "touch_order", "calls", "files", "written", "opened", "patches")
    }
    if image.objects or image.pending:
        found |= {n: [bytes(r) for r in getattr(image, n)] for n in ("objects", "pieces", "present", "pending")}
        found["contents_file"] = image.contents_file
    header = image.header
    return found | {"fields": (header.park, header.umask, header.xstate, header.registers.ip)}


def string(image: FlatImage, offset: int) -> bytes:
    return bytes(image.strings[offset : image.strings.index(b"\0", offset)])


@given(image=images())
@settings(max_examples=60)
def test_what_is_written_is_read(image: FlatImage, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("flat") / "direct.img"
    path.write_bytes(encode(image))
    back = decode(path)
    assert parts(back) == parts(image)
    assert string(back, back.header.cwd) == string(image, image.header.cwd)
    assert back.header.pages == sum(1 if run.address & REPEATED else run.pages for run in image.runs)
    assert encode(image) == path.read_bytes()


def small() -> bytes:
    image = FlatImage(Header(park=1 << 44))
    image.mappings, image.runs = [Mapping(4096, 8192)], [Run(4096, 1)]
    image.files, image.stamps = ["/bin/true"], [4096]
    image.header.cwd = image.string("/")
    return encode(image)


def test_an_image_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    data, path = small(), tmp_path / "direct.img"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ProbeFileDamaged):
            decode(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(ProbeFileDamaged):
        decode(path)


def test_a_changed_byte_anywhere_is_seen(tmp_path: Path) -> None:
    data, path = small(), tmp_path / "direct.img"
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(ProbeFileDamaged):
            decode(path)


def test_another_version_is_named(tmp_path: Path) -> None:
    path, data = tmp_path / "direct.img", bytearray(small())
    data[Header.version.offset] = 10
    path.write_bytes(data)
    with pytest.raises(ProbeFileDamaged, match="version 10 is unknown, this program reads 1 to 9"):
        decode(path)


def test_an_image_says_no_more_than_it_needs() -> None:
    image = FlatImage(Header(park=1 << 44))
    assert decode_version(image) == 1
    image.threads = [flat_image.Thread()]
    assert decode_version(image) == 3
    image.pending = [Pending()]
    assert decode_version(image) == 4
    image.pending, image.objects = [], [MemoryObject()]
    assert decode_version(image) == 4
    image.threads, image.objects, image.runs = [], [], [Run(4096, 2)]
    assert decode_version(image) == 1
    image.runs = [Run(4096 | REPEATED, 2)]
    assert decode_version(image) == 5
    image.clocks = 8
    assert decode_version(image) == 7
    image.header.version = 6
    assert decode_version(image) == 6
    image.header.version = 7
    image.descriptors, image.contents = [OpenDescriptor(5, Kind.TIMER, 0, 1)], [(5, bytes(Ticks(ticks=1)))]
    assert decode_version(image) == 8
    image.clocks, image.runs = 0, []
    assert decode_version(image) == 8
    image.contents, image.descriptors = [], [OpenDescriptor(5, Kind.SOCKET, 2, 0, 5, 0, 1)]
    assert decode_version(image) == 9


def decode_version(image: FlatImage) -> int:
    return Header.from_buffer_copy(encode(image)).version


@pytest.mark.parametrize("what", ["objects", "pending", "size"])
def test_too_much_shared_memory_is_refused(what: str, tmp_path: Path) -> None:
    image, path = FlatImage(Header(park=1 << 44)), tmp_path / "direct.img"
    image.objects = [MemoryObject(8)] * (flat_image.MOST_OBJECTS + (what == "objects"))
    image.pending = [Pending()] * (flat_image.MOST_PENDING + (what == "pending"))
    if what == "size":
        image.objects[0] = MemoryObject(flat_image.USER_END + 1)
    path.write_bytes(encode(image))
    with pytest.raises(ProbeFileDamaged, match="shared memory"):
        decode(path)


def test_an_image_too_large_for_the_restorer_is_not_made() -> None:
    image = FlatImage(Header())
    image.patches = [(0, bytes(flat_image.MAX_BYTES))]
    with pytest.raises(ValueError, match="at most"):
        encode(image)


def test_the_structures_are_those_of_the_restorer(tmp_path: Path) -> None:
    lines = []
    for structure in (*flat_image.STRUCTURES, control.Report):
        name = f"struct {C_NAMES[structure.__name__]}"
        lines.append(f'printf("{structure.__name__} %zu\\n", sizeof({name}));')
        lines += [
            f'printf("{structure.__name__}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));'
            for field in structure._fields_
        ]
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "image.h"\nint main(void) {' + "\n".join(lines) + "}\n"
    )
    subprocess.run(["cc", "-Wall", "-Werror", f"-I{SOURCES}", "-o", tmp_path / "layout", source], check=True)
    said = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout
    ours = []
    for structure in (*flat_image.STRUCTURES, control.Report):
        ours.append(f"{structure.__name__} {ctypes.sizeof(structure)}")
        ours += [f"{structure.__name__}.{f[0]} {getattr(structure, f[0]).offset}" for f in structure._fields_]
    assert said.split("\n")[:-1] == ours


def test_the_numbers_are_those_of_the_restorer(tmp_path: Path) -> None:
    kinds = {
        n if n in ("SAME_AS", "CONTENTS", "WATCH") else f"OPEN_{n}": v
        for n, v in vars(flat_image.Kind).items()
        if n.isupper()
    }
    options = {n: v for n, v in vars(control.Option).items() if n.isupper()}
    confined = {"WRITES_CONFINED": control.Confined.WRITES, "CALLS_FILTERED": control.Confined.CALLS}
    told = {"FAILED": direct_agent._FAILED, "RESTORED": direct_agent.RESTORED, "STEP_AGENT": direct_agent.STEP_AGENT}
    expected = {**kinds, **options, **confined, **told,
                "IMAGE_MAGIC": flat_image.MAGIC, "IMAGE_VERSION": flat_image.VERSIONS[-1],
                "IMAGE_MAX": flat_image.MAX_BYTES, "USER_END": flat_image.USER_END, "PARK_IMAGE": flat_image.PARK_ROOM,
                "SIGNALS": flat_image.SIGNALS, "LIMITS": flat_image.LIMITS, "PAGE": PAGE_SIZE,
                "THREAD_ROOM": flat_image.THREAD_ROOM, "MOST_THREADS": flat_image.MOST_THREADS,
                "MOST_OBJECTS": flat_image.MOST_OBJECTS, "MOST_PENDING": flat_image.MOST_PENDING,
                "OF_OBJECT": flat_image.OF_OBJECT, "REPEATED": flat_image.REPEATED,
                "CLOCKS": CLOCKS, "CLOCKS_VERSION": 6, "NODE_VERSION": 7,
                "VDSO_ROOM": flat_image.VDSO_ROOM, "CLOCK_TABLE_BYTES": _TABLE_BYTES - 8,
                "IMAGE_FD": direct_agent._FIRST_PASSED}  # fmt: skip
    source = tmp_path / "numbers.c"
    body = "".join(f'printf("{name} %lu\\n", (unsigned long)({name}));\n' for name in expected)
    source.write_text(f'#include <stdio.h>\n#include "restorer.h"\nint main(void) {{{body}}}\n')
    subprocess.run(["cc", f"-I{SOURCES}", "-o", tmp_path / "numbers", source], check=True)
    said = subprocess.run([tmp_path / "numbers"], check=True, capture_output=True, text=True).stdout
    assert dict(line.split() for line in said.splitlines()) == {name: str(value) for name, value in expected.items()}


def test_every_step_of_the_restorer_has_its_sentence() -> None:
    listed = re.search(r"enum step \{(.*?)\};", (SOURCES / "image.h").read_text(), re.S)
    assert listed
    steps = re.findall(r"^\s*(STEP_\w+)", listed[1], re.M)
    assert steps[0] == "STEP_START" and "STEP_START = 1," in listed[1] and listed[1].count("=") == 1
    assert sorted(direct.STEPS) == list(range(1, len(steps) + 1))
    assert "opening the copy" in direct.STEPS[steps.index("STEP_OPEN") + 1]
    assert "descriptor" in direct.STEPS[steps.index("STEP_DESCRIPTOR") + 1]
