# SPDX-License-Identifier: Apache-2.0
"""A program of several segments of code, as some linkers make them: between two of them nothing is mapped."""

from __future__ import annotations

from pathlib import Path

from programs import symbols
from tracing import SECONDS, compile_small, count_run, program_of, streams_of

from checkpoint.binary.elf import read_image
from checkpoint.binary.sites import find_sites
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.tracee import Tracee, What
from checkpoint.stubs.text import read_text

FAR = 0x800000
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
__attribute__((noipa, section(".far"))) static unsigned far_step(unsigned x) { return x * 2654435761u + 1013904223u; }
__attribute__((noipa)) static unsigned near_step(unsigned x) { return x * 1103515245u + 12345u; }
int main(int argc, char **argv)
{
    unsigned x = 1;
    for (int i = 0; i < (argc > 1 ? atoi(argv[1]) : 0); i++)
        x = i % 3 ? near_step(x) : far_step(x);
    printf("%u\n", x);
}
"""


def two_segments(folder: Path) -> Path:
    """A program that nothing moves, with a function in a segment of its own far behind the others."""
    flags = ("-fno-pie", "-no-pie", f"-Wl,--section-start=.far={FAR:#x}")
    return compile_small(folder, "apart", SOURCE, *flags)


def test_both_segments_are_counted(tmp_path: Path) -> None:
    path = two_segments(tmp_path)
    plain = count_run(program_of(path, "0"))
    assert plain.end.status == 0
    traced = count_run(program_of(path, "3000"))
    assert traced.end.status == 0
    assert (traced.executions(path, FAR), traced.executions(path, symbols(path)["near_step"])) == (1000, 2000)


def test_nothing_is_read_or_written_between(tmp_path: Path) -> None:
    path = two_segments(tmp_path)
    sites = find_sites(read_image(str(path)))
    with streams_of() as streams, Tracee.start(program_of(path, "3"), streams) as tracee:
        text = read_text(tracee, sites, 0)
        assert len(text.stretches) >= 2 and text.start == int(sites.offset[0])
        assert sum(end - begin for begin, end in text.stretches) < len(text.code) / PAGE_SIZE * 64
        for begin, end in text.stretches:
            assert bytes(text.code[begin:end]) == tracee.read(text.start + begin, end - begin)
        for offset, length, code in zip(sites.offset, sites.length, sites.code, strict=True):
            at = int(offset) - text.start
            assert bytes(text.code[at : at + int(length)]) == bytes(code[: int(length)])
        text.write(tracee)
        tracee.resume()
        while tracee.wait(SECONDS).what is not What.ENDED:
            tracee.resume()
        assert streams.stdout.read_text() == f"{_computed(3)}\n"


def _computed(steps: int) -> int:
    x = 1
    for step in range(steps):
        x = (x * 1103515245 + 12345 if step % 3 else x * 2654435761 + 1013904223) % 2**32
    return x
