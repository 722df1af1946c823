# SPDX-License-Identifier: Apache-2.0
"""Copies of inner loops: what the program computes, and every count, as without them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import build
from tracing import compile_small, count_run, program_of

from checkpoint.binary.elf import read_image
from checkpoint.binary.sites import find_sites
from checkpoint.process.tracee import Occurrence, Tracee
from checkpoint.stubs.counters import SiteCounters

LOOPS = r"""
    .text
    .macro function name
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    .endm
    .macro over name
    .cfi_endproc
    .size \name, . - \name
    .endm

// uint64_t carried(uint64_t turns, uint64_t limit): the flags of the last comparison are read behind the loop.
    function carried
    xor %eax, %eax
1:  add $0x12345, %rax
    cmp %rsi, %rax
    ja 3f
    sub $1, %rdi
    jne 1b
2:  adc $7, %rax
    ret
3:  setp %dl
    sbb $3, %rax
    movzbl %dl, %edx
    add %rdx, %rax
    ret
    over carried

// uint64_t middle(uint64_t turns, uint64_t x): entered in the middle, by a jump to the comparison; short instructions.
    function middle
    jmp 2f
1:  add %rsi, %rax
    add %rcx, %rax
    inc %rsi
2:  mov %rax, %rcx
    dec %rdi
    jns 1b
    ret
    over middle

// uint64_t top(uint64_t turns): left at its head, and its end is a jump back; live data below the stack pointer.
    function top
    xor %eax, %eax
    mov %rdi, -8(%rsp)
    mov %rdi, -128(%rsp)
1:  cmpq $0, -8(%rsp)
    je 2f
    addq $1, counter(%rip)
    add -8(%rsp), %rax
    decq -8(%rsp)
    jmp 1b
2:  add -128(%rsp), %rax
    ret
    over top

// uint64_t tight(const uint64_t *from, uint64_t words): nothing in it is five bytes long.
    function tight
    xor %eax, %eax
1:  add (%rdi), %rax
    add $8, %rdi
    dec %rsi
    jne 1b
    ret
    over tight

    .bss
    .balign 8
counter: .quad 0
    .globl counter
    .section .note.GNU-stack, "", @progbits
"""

CALLER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
uint64_t carried(uint64_t, uint64_t), middle(uint64_t, uint64_t), top(uint64_t), tight(const uint64_t *, uint64_t);
extern uint64_t counter;
int main(void)
{
    static uint64_t words[300];
    uint64_t sum = 0;
    for (uint64_t n = 1; n < 300; n++) {
        words[n] = n * n * 0x9e3779b97f4a7c15u;
        sum = sum * 31 + carried(n, 0x12345 * 150) + carried(n, ~0ul);
        sum = sum * 31 + middle(n, sum);
        sum = sum * 31 + top(n);
        sum = sum * 31 + tight(words, n);
    }
    printf("%016llx %llu\n", (unsigned long long)sum, (unsigned long long)counter);
    return 0;
}
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    (folder / "asm.S").write_text(LOOPS)
    return compile_small(folder, "loops", CALLER, str(folder / "asm.S"))


def test_loops_of_every_form_are_found(loops: Path) -> None:
    sites = find_sites(read_image(str(loops)))
    spans = {(int(a), int(b)) for a, b in zip(sites.loop_start, sites.loop_end, strict=True) if b}
    assert len(spans) >= 4 and all(start < end for start, end in spans)
    inside = (sites.offset >= sites.loop_start) & (sites.offset < sites.loop_end)
    assert (inside == (sites.loop_end > 0)).all()


def test_the_program_computes_and_is_counted_as_without_copies(loops: Path) -> None:
    plain = subprocess.run([loops], capture_output=True, text=True, check=True).stdout
    single, copied = (count_run(program_of(loops), copied=copied) for copied in (False, True))
    assert single.end.stdout == copied.end.stdout == plain
    assert np.array_equal(single.counts, copied.counts)
    assert (copied.counts == sum(range(300))).sum() >= 2, "a turn of the loops is missing"


@pytest.mark.parametrize("name", ["nbody", "redzone", "flags", "avx", "jumptable", "signals"])
def test_traps_for_stubs_are_none_for_copies(name: str, builds: Path) -> None:
    path = build(name, builds)
    arguments = {"nbody": ("50",), "signals": ("30",)}.get(name, ())
    single, copied = (count_run(program_of(path, *arguments), copied=copied) for copied in (False, True))
    assert copied.end.status == single.end.status == 0 and "WRONG" not in copied.end.stdout
    if name != "signals":
        assert np.array_equal(single.counts, copied.counts)


def test_copies_made_and_taken_back_while_it_runs(loops: Path, builds: Path) -> None:
    """Whatever instruction the program stands at, and however often."""
    path, rounds = build("flat", builds), iter(range(1000))

    def toggle(tracee: Tracee, counters: SiteCounters) -> Occurrence:
        tracee.request_pause()
        occurrence = tracee.wait(30.0)
        number = next(rounds)
        if number == 0:
            counters.copy_loops(np.arange(counters.columns))
            assert (counters.copies > 0).any()
        elif number == 3:
            hot = np.flatnonzero(counters.copies)[:1]
            assert counters.ways_out().at(hot) <= 400_000
            counters.remove(hot)
            assert not counters.copies[hot].any() and not len(counters.in_loops(hot))
        return occurrence

    truth = count_run(program_of(path, "40"))
    counted = count_run(program_of(path, "40"), while_running=toggle, every=0.002)
    assert counted.end.stdout == truth.end.stdout and next(rounds) > 3
