# SPDX-License-Identifier: Apache-2.0
"""The Valgrind tracer: exact vectors of programs known instruction by instruction, whatever interrupts a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from assembly import LOOP, SPLIT, STRINGS, assembled, blocks_of_loop, blocks_of_split
from programs import build, expected_counts, run, symbols
from tracing import INTERVAL, compile_small, count_run, program_of, streams_of
from valgrind_traces import traced

from probe.pipeline.validate import validate
from probe.tracers.valgrind import trace


@pytest.mark.parametrize(
    ("body", "model", "labels"),
    [(LOOP, blocks_of_loop, {}), (SPLIT, blocks_of_split, {"odd": ("again", 5)})],
    ids=["loop", "split"],
)
def test_exact_vectors(
    body: str,
    model: Callable[[int], list[tuple[str, int]]],
    labels: dict[str, tuple[str, int]],
    tmp_path: Path,
) -> None:
    """Every count of every interval, from the program's text alone."""
    rounds = 150_001
    path = assembled(tmp_path, "exact", body.replace("{rounds}", str(rounds)))
    run_of = traced(path)
    address = symbols(path)
    expected: list[Counter[int]] = []
    begin = 0
    for name, instructions in model(rounds):
        base, past = labels.get(name, (name, 0))
        while len(expected) <= begin // INTERVAL:
            expected.append(Counter())
        expected[begin // INTERVAL][address[base] + past] += 1
        begin += instructions
    mine, start = run_of.link_addresses(path)
    found = [
        Counter({int(a): int(n) for a, n in zip(start, row[mine], strict=True) if n})
        for row in run_of.recorded.counts.toarray()
    ]
    assert found == expected
    assert int(run_of.recorded.lengths.sum()) == begin
    assert len(mine) == len(run_of.recorded.image), "nothing else ran"


def test_a_repeated_string_instruction_is_one(tmp_path: Path) -> None:
    """However often it repeats, also not at all, and also where a jump leads right to it."""
    path = assembled(tmp_path, "strings", STRINGS)
    run_of = traced(path)
    assert int(run_of.recorded.lengths.sum()) == 2 + 200 * 25 + 3
    assert run_of.executions(path, symbols(path)["lone"]) == 200
    assert run_of.executions(path, symbols(path)["turn"]) == 200


def test_a_lone_string_instruction_counts_each_time_it_is_jumped_to(tmp_path: Path) -> None:
    body = " mov $3000, %edx\nturn:\n lea buffer(%rip), %rdi\n mov $9, %ecx\n jmp lone\n nop\nlone:\n rep stosb\n"
    path = assembled(tmp_path, "lone", f"{body} dec %edx\n jnz turn")
    run_of = traced(path, interval=1000)
    assert run_of.executions(path, symbols(path)["lone"]) == 3000
    lengths = run_of.recorded.lengths
    assert int(lengths.sum()) == 1 + 3000 * 6 + 3
    late = np.cumsum(lengths)[:-1] - 1000 * np.arange(1, len(lengths))
    assert (late >= 0).all() and (late < 5).all(), "turns in a window moved the boundary behind it"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("redzone", ()), ("jumptable", ()), ("callpop", ()), ("riprel", ()), ("rep", ("3",)),
        ("jit", ("1",)), ("raiser", ()), ("dlopen", ()), ("execer", ("2",)),
    ],
)  # fmt: skip
def test_what_programs_know_of_themselves(name: str, arguments: tuple[str, ...], builds: Path) -> None:
    path = build(name, builds)
    run_of = traced(path, *(arguments or ("3",)))
    wanted = expected_counts(run_of.stdout)
    checked = 0
    for label, executions in wanted.items():
        image, _, symbol = label.rpartition(":")
        where = path.parent / (image or ("execed" if name == "execer" else path.name))
        if symbol in symbols(where) and str(where.resolve()) in [p for p, _ in run_of.recorded.images]:
            assert run_of.executions(where, symbols(where)[symbol]) == executions, label
            checked += 1
    assert checked, run_of.stdout


@pytest.mark.parametrize(("name", "arguments"), [("sweep", "1"), ("nbody", "2"), ("callpop", "20"), ("jumptable", "2")])
def test_native_counts_are_the_same_for_every_site(name: str, arguments: str, builds: Path) -> None:
    path = build(name, builds)
    sites, counts = count_run(program_of(path, arguments)).image(path)
    run_of = traced(path, arguments, interval=10_000_000)
    mine, start = run_of.link_addresses(path)
    totals = run_of.totals()[mine]
    covered = [
        int(totals[(start <= site) & (site < start + run_of.recorded.size[mine])].sum()) for site in sites.offset
    ]
    assert covered == counts.tolist()
    assert (counts > 0).sum() > 5


def test_code_that_shares_its_tail(builds: Path) -> None:
    """Blocks overlap: the head of one is the middle of another."""
    path = build("overlap", builds)
    run_of, wanted = traced(path, "1000"), expected_counts(run(path, "1000").stdout)
    for name in ("site_head", "site_middle"):
        assert run_of.executions(path, symbols(path)[name]) == wanted[name]
    mine, start = run_of.link_addresses(path)
    ends = start + run_of.recorded.size[mine]
    assert len(set(ends.tolist())) < len(ends), "no two blocks of this program overlap"


# -- signals, jumps out of handlers, long blocks


FAULTS = """
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static sigjmp_buf back;
static volatile unsigned long cell, sum;

static void on_fault(int number) { (void)number; siglongjmp(back, 1); }

__attribute__((noipa)) void fault(volatile int *nowhere)
{
    __asm__ volatile(".globl site_before\\nsite_before: movl $0x11111111, %0" : "=m"(cell));
    *nowhere = 1;
    __asm__ volatile(".globl site_behind\\nsite_behind: movl $0x22222222, %0" : "=m"(cell));
}

int main(int argc, char **argv)
{
    long rounds = atol(argv[argc - 1]);
    signal(SIGSEGV, on_fault);
    for (volatile long i = 0; i < rounds; i++) {
        if (!sigsetjmp(back, 1))
            fault(0);
        for (volatile int k = 0; k < 3000; k++)
            sum += (unsigned long)k * 0x12345;
    }
    printf("%lu\\n", sum);
    return 0;
}
"""


def test_a_block_left_by_a_fault_is_counted_whole(tmp_path: Path) -> None:
    """What stands in docs/limits.md: the instructions behind the fault are counted too."""
    path = compile_small(tmp_path, "faulting", FAULTS, "-fno-pie", "-no-pie")
    run_of = traced(path, "500")
    assert run_of.executions(path, symbols(path)["site_before"]) == 500
    assert run_of.executions(path, symbols(path)["site_behind"]) == 500
    sites, counts = count_run(program_of(path, "500")).image(path)
    native = dict(zip(sites.offset.tolist(), counts.tolist(), strict=True))
    assert native.get(symbols(path)["site_before"], native.get(symbols(path)["site_behind"])) in (0, 500)


def test_markers_behind_faults_are_found_out(tmp_path: Path) -> None:
    """The timing run makes do with other markers, or joins what it cannot mark; it never places one wrongly."""
    path = compile_small(tmp_path, "faulting", FAULTS, "-fno-pie", "-no-pie")
    with streams_of() as streams:
        profile = trace(program_of(path, "3000"), interval=2_000_000, streams=streams)
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    assert timed.intervals >= 0.9 * profile.intervals and timed.out_of_order == 0
    behind = symbols(path)["site_behind"]
    assert behind not in profile.blocks.site[timed.columns].tolist()


def test_very_long_blocks(tmp_path: Path) -> None:
    """Straight code is translated in pieces; each counts for itself, and no instruction twice."""
    body = " mov $300, %ecx\nagain:\n" + " add $0x11111111, %eax\n" * 5000 + " dec %ecx\n jnz again"
    path = assembled(tmp_path, "long", body)
    run_of = traced(path)
    assert int(run_of.recorded.lengths.sum()) == 1 + 300 * 5002 + 3
    assert int(run_of.recorded.instructions.max()) < 200
    again = symbols(path)["again"]
    assert {run_of.executions(path, again + 5 * i) for i in (0, 1, 100, 2500, 4999)} == {300}
