# SPDX-License-Identifier: Apache-2.0
"""Programs that name no function: what is found in them is code, no label is counted wrongly, no output changed."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from bare import bare
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from iced_x86 import Decoder
from programs import PROGRAMS, build, expected_counts, run, symbols
from tracing import compile_small, count_run, program_of

from checkpoint.binary.elf import ElfImage, read_image
from checkpoint.binary.functions import decode_functions
from checkpoint.binary.reachable import reachable_code
from checkpoint.binary.sites import _analyse
from checkpoint.errors import ProgramNotRunnable

LEAST_FOUND = 0.75
"""Share of the instructions of functions that are not left out themselves."""

# What a table of addresses leads to alone is not followed, nor is a function that no code calls or takes.
TRAPS = ["redzone", "flags", "riprel", "jumptable", "overlap", "datacode", "callpop", "flat", "bigtext", "raiser"]
ALL_FOUND = ["redzone", "callpop", "flat", "raiser"]


def heads(image: ElfImage, pieces: list[tuple[int, int]]) -> set[int]:
    return {i.ip for start, end in pieces for i in Decoder(64, image.bytes_at(start, end - start), ip=start)}


@pytest.mark.parametrize("variant", ["pie", "nopie"])
@pytest.mark.parametrize("name", ["sorter", "nbody", "phases", "bigtext"])
def test_what_is_found_is_what_the_frames_say(name: str, variant: str, builds: Path, tmp_path: Path) -> None:
    path = build(name, builds, variant)
    whole = read_image(str(path))
    known = {i.ip for function in decode_functions(whole) for i in function.instructions}
    image = read_image(str(bare(path, tmp_path)))
    pieces = [(start, end) for start, end in reachable_code(image).tolist()]
    assert all(one[1] <= other[0] for one, other in pairwise(pieces))
    found = np.array(sorted(heads(image, pieces)))
    row = np.searchsorted(whole.functions[:, 0], found, side="right") - 1
    inside = set(found[(row >= 0) & (found < whole.functions[row, 1])].tolist())
    assert inside <= known
    assert len(inside) >= LEAST_FOUND * len(known)


@pytest.mark.parametrize("variant", ["pie", "nopie"])
@pytest.mark.parametrize("name", TRAPS)
def test_counts_without_names_are_exact(name: str, variant: str, builds: Path, tmp_path: Path) -> None:
    path = build(name, builds, variant)
    without = bare(path, tmp_path)
    plain = run(path, *PROGRAMS[name].quick)
    traced = count_run(program_of(without, *PROGRAMS[name].quick))
    assert (traced.end.stdout, traced.end.status) == (plain.stdout, plain.returncode)
    assert sum(traced.installed) > 0
    places = symbols(path)
    for label, count in expected_counts(plain.stdout).items():
        if ":" not in label:
            known = (count,) if name in ALL_FOUND else (count, None)
            assert traced.executions(without, places[label]) in known, label


FREESTANDING = r"""
static unsigned counted;
__attribute__((noipa, aligned(16))) static void by_call(void) { counted += 0x10001; }
__attribute__((noipa, aligned(16))) static void by_pointer(void) { counted += 0x20001; }
static void (*volatile table[2])(void) = {by_pointer, by_pointer};
__attribute__((noreturn)) void _start(void)
{
    for (int i = 0; i < 3000; i++)
        i % 3 ? by_call() : table[i % 2]();
    __asm__ volatile("syscall" : : "a"(231), "D"(counted != 2000 * 0x10001 + 1000 * 0x20001));
    __builtin_unreachable();
}
"""


def test_a_program_of_one_section_of_code(tmp_path: Path) -> None:
    """As Free Pascal links: the section fills its segment, and some functions are known by their addresses alone."""
    flags = ("-fno-pie", "-no-pie", "-static", "-nostdlib", "-fno-asynchronous-unwind-tables", "-Wl,--build-id=none")
    path = compile_small(tmp_path, "alone", FREESTANDING, *flags)
    places = symbols(path)
    (tmp_path / "bare").mkdir()
    without = bare(path, tmp_path / "bare")
    image = read_image(str(without))
    assert not image.functions_known and image.functions.tolist() == [list(one) for one in image.executable_ranges()]
    traced = count_run(program_of(without))
    assert traced.end.status == 0
    assert [traced.executions(without, places[name]) for name in ("by_call", "by_pointer")] == [2000, 1000]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files(data: st.DataObject, builds: Path, tmp_path: Path) -> None:
    """Wherever sections and segments say they are, nothing but ProgramNotRunnable comes of it."""
    content = bytearray(bare(build("short", builds, "nopie"), tmp_path).read_bytes())
    program, section = struct.unpack_from("<QQ", content, 32)
    places = [*range(program, program + 56 * 13), *range(section, len(content))]
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.sampled_from(places))] = data.draw(st.integers(0, 255))
    (tmp_path / "damaged").write_bytes(content)
    try:
        image = read_image(str(tmp_path / "damaged"))
    except ProgramNotRunnable:
        return
    _analyse(image)
