# SPDX-License-Identifier: Apache-2.0
"""Counting stubs on real processes: every count exact, every output as without them, trap by trap."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from programs import DYNAMIC, PROGRAMS, VARIANTS, build, expected_counts, run, symbols
from tracing import SECONDS, compile_small, count_run, program_of, streams_of

from checkpoint.page_table import PageTable
from checkpoint.process.loader import LoadWatch
from checkpoint.process.tracee import Occurrence, Tracee, What
from checkpoint.stubs import counter_pages
from checkpoint.stubs.counters import SiteCounters
from checkpoint.stubs.encode import page_align

# Labels that no site counts: indirect calls and jumps cannot be redirected, and whole functions are left alone
# where something takes the address of their inside or jumps between two of their instructions.
NOT_COUNTED = {
    "riprel": {"site_rip_call", "site_rip_jump"},
    "callpop": {"site_get_pc"},
    "jumptable": {f"ladder_{n}" for n in range(16)},
    "overlap": {"site_locked", "site_unlocked", "site_outer", "site_inner", "site_long_outer", "site_long_inner"},
    "datacode": {"site_hash"},
    "faults": {"site_fault"},
    "bigtext": {f"big_{n:04d}" for n in range(0, 2500, 500)},
}
TRAPS = [
    "redzone",
    "flags",
    "riprel",
    "avx",
    "callpop",
    "flat",
    "jumptable",
    "overlap",
    "datacode",
    "jit",
    "ifunc",
    "rep",
    "vdso",
    "bigtext",
    "raiser",
    "faults",
    "dlopen",
    "farlib",
    "execer",
    "execed",
    "execscript.sh",
    "short",
    "socket",
    "pipe",
    "shm",
    "fileread",
    "addrhash",
]
STUB_TRAPS = ["redzone", "flags", "riprel", "jumptable", "avx", "callpop", "overlap", "datacode", "faults", "raiser"]


def check_counts(name: str, path: Path, unstripped: Path, *arguments: str) -> int:
    """Trace one program, compare everything with its plain run; returns how many labels were compared."""
    plain = run(path, *arguments)
    traced = count_run(program_of(path, *arguments))
    assert (traced.end.stdout, traced.end.stderr, traced.end.status) == (plain.stdout, plain.stderr, plain.returncode)
    compared, skipped = 0, set()
    for label, count in expected_counts(plain.stdout).items():
        image, _, symbol = label.rpartition(":")
        of, place = (path.parent / image, unstripped.parent / image) if image else (path, unstripped)
        if image == "" and name == "execer":
            continue  # counted in the image that is gone
        found = traced.executions(of, symbols(place)[symbol])
        if found is None:
            skipped.add(symbol)
        else:
            assert (label, found) == (label, count)
            compared += 1
    assert skipped == NOT_COUNTED.get(name, set()), "blocks without a counter"
    return compared


@pytest.mark.parametrize("name", TRAPS)
def test_counts_are_exact_and_output_is_unchanged(name: str, builds: Path) -> None:
    path = build(name, builds)
    check_counts(name, path, path, *PROGRAMS[name].quick)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "pie"])
def test_counts_are_exact_however_a_program_is_linked(variant: str, builds: Path) -> None:
    # A static program brings the C library with it: its decoding costs a second each.
    for name in STUB_TRAPS[:4] if variant.startswith("static") else STUB_TRAPS:
        path = build(name, builds, variant)
        unstripped = build(name, builds, "pie" if variant == "stripped" else variant)
        check_counts(name, path, unstripped, *PROGRAMS[name].quick)


@pytest.mark.parametrize("variant", [v for v in DYNAMIC if v != "pie"])
@pytest.mark.parametrize("name", ["dlopen", "farlib", "execer"])
def test_counts_of_libraries_and_of_programs_executed(name: str, variant: str, builds: Path) -> None:
    path = build(name, builds, variant)
    unstripped = build(name, builds, "pie" if variant == "stripped" else variant)
    assert check_counts(name, path, unstripped, *PROGRAMS[name].quick) >= 1


@pytest.mark.parametrize("name", ["signals", "altstack"])
def test_no_count_is_lost_to_signals_inside_stubs(name: str, builds: Path, tmp_path: Path) -> None:
    path, truth = build(name, builds), tmp_path / "counts"
    arguments = ("60" if name == "signals" else "3000", str(truth))
    plain = run(path, *arguments)
    traced = count_run(program_of(path, *arguments))
    assert traced.end.stdout == plain.stdout and traced.end.status == 0
    expected = {**expected_counts(plain.stdout), **expected_counts(truth.read_text())}
    assert expected["site_handler"] > 50, "too few signals to prove anything"
    for label, count in expected.items():
        assert (label, traced.executions(path, symbols(path)[label])) == (label, count)


@dataclass(frozen=True)
class Small:
    """A program of a test's own. `ladder` is jumped into by table, `fault` faults inside its stub."""

    path: Path
    addresses: dict[str, int]


SMALL = r"""
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
uint64_t ladder(uint64_t rung, uint64_t value);
void fault(volatile int *at);
__asm__(".text\n.type ladder, @function\nladder:\n.cfi_startproc\n"
        "mov %rsi, %rax\nmov rungs@GOTPCREL(%rip), %rdx\njmp *(%rdx,%rdi,8)\n"
        ".irp n, 0, 1, 2, 3\n.globl rung_\\n\nrung_\\n: lea 0x1001(%rax,%rax,2), %rax\n.endr\nret\n"
        ".cfi_endproc\n.size ladder, .-ladder\n"
        ".type fault, @function\n.globl site_fault\nfault:\n.cfi_startproc\nsite_fault: movl $0x51735173, (%rdi)\nret\n"
        ".cfi_endproc\n.size fault, .-fault\n"
        ".section .data.rel.ro, \"aw\"\n.balign 8\n.globl rungs\nrungs: .quad rung_0, rung_1, rung_2, rung_3\n.text\n");
static sigjmp_buf back;
static volatile long handled, trapped;
static void on_fault(int n) { (void)n; handled++; siglongjmp(back, 1); }
static void on_trap(int n) { (void)n; trapped++; }
int main(int argc, char **argv)
{
    long rounds = atol(argv[1]);
    uint64_t value = argc;
    signal(SIGSEGV, on_fault);
    signal(SIGTRAP, on_trap);
    for (volatile long i = 0; i < rounds; i++) {
        value = ladder((uint64_t)i & 3, value);
        if (!sigsetjmp(back, 1))
            fault((int *)16);
        if (i % 100 == 0)
            raise(SIGTRAP);
    }
    printf("%llu %ld %ld\n", (unsigned long long)value, handled, trapped);
    if (argc > 2)
        __asm__ volatile("int3");
    return 0;
}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.c").write_text(SMALL)
    subprocess.run(["cc", "-O2", "-fPIE", "-pie", "-o", "small", "small.c"], cwd=folder, check=True)
    return Small(folder / "small", symbols(folder / "small"))


def test_table_jumps_into_a_patched_block(small: Small) -> None:
    traced = count_run(program_of(small.path, "4000"))
    assert traced.end.stdout == run(small.path, "4000").stdout
    sites, counts = traced.image(small.path)
    rungs = [small.addresses[f"rung_{n}"] for n in range(4)]
    counted = [(n, int(counts[sites.offset == rung][0])) for n, rung in enumerate(rungs) if rung in sites.offset]
    assert len(counted) == 1, "the four rungs are one block, with one site"
    rung, executions = counted[0]
    assert executions == 1000 * (rung + 1), "a rung is passed by every jump to it or above"


def test_handlers_may_leave_a_stub_by_longjmp(small: Small) -> None:
    traced = count_run(program_of(small.path, "1000"))
    assert traced.end.stdout == run(small.path, "1000").stdout
    sites, _ = traced.image(small.path)
    assert small.addresses["site_fault"] in sites.offset, "the fault must happen inside a stub"
    assert traced.executions(small.path, small.addresses["site_fault"]) == 1000


def test_sigtrap_that_a_program_raises_is_its_own(small: Small) -> None:
    assert count_run(program_of(small.path, "1000")).end.stdout.split()[2] == "10"


def test_code_that_notices_patches_notices(builds: Path) -> None:
    """The documented limit, so that a silent change of it is seen."""
    traced = count_run(program_of(build("selfcheck", builds), "10"))
    assert traced.end.stdout == "selfcheck altered\n" and traced.end.status == 4


@pytest.mark.parametrize("name", ["redzone", "jumptable", "raiser"])
def test_hot_sites_go_at_any_instruction(name: str, builds: Path) -> None:
    """Pause again and again, wherever the program is, and take out the hottest site each time."""
    path = build(name, builds)
    size = {"redzone": "600", "jumptable": "60", "raiser": "20"}[name]
    plain = run(path, size)
    kept = [symbols(path)[label] for label in list(expected_counts(plain.stdout))[:1]]
    removed: list[int] = []

    def remove_hottest(tracee: Tracee, counters: SiteCounters) -> Occurrence:
        tracee.request_pause()
        occurrence = tracee.wait(SECONDS)
        assert occurrence.what in (What.PAUSED, What.EXITING)
        if occurrence.what is What.PAUSED:
            sites = counters.images[0].sites
            counts = counters.read()
            counts[counters.removed] = -1
            for address in kept:
                counts[(sites.block_start <= address) & (address < sites.block_start + sites.block_bytes)] = -1
            hottest = int(np.argmax(counts))
            if counts[hottest] > 0:
                counters.remove(np.array([hottest]))
                removed.append(hottest)
        return occurrence

    traced = count_run(program_of(path, size), while_running=remove_hottest, every=0.002)
    assert traced.end.stdout == plain.stdout and traced.end.status == 0
    assert len(removed) >= 3, "the program ended too soon"
    expected = expected_counts(plain.stdout)
    for address, count in zip(kept, expected.values(), strict=False):
        assert traced.executions(path, address) == count


def test_removed_sites_count_no_more(builds: Path) -> None:
    path = build("flat", builds)
    address, seen = symbols(path)["site_flat"], []

    def remove_all(tracee: Tracee, counters: SiteCounters) -> Occurrence | None:
        if seen:
            return None
        tracee.request_pause()
        occurrence = tracee.wait(SECONDS)
        assert occurrence.what is What.PAUSED
        counters.remove(np.flatnonzero(counters.read() >= 0))
        seen.append(counters.read())
        return occurrence

    traced = count_run(program_of(path, "200"), while_running=remove_all)
    # Where it was stopped inside a stub, it finishes that one.
    assert seen and 0 <= (traced.counts - seen[0]).sum() <= 1
    assert 0 < (traced.executions(path, address) or 0) < 200_000_000


@pytest.mark.parametrize("seen", [True, False])
def test_pages_that_nobody_counted_in_are_not_read(seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do looks make pages. Where the program's pages cannot be seen, all are read, with the same counts."""
    apart = "__attribute__((noipa)) int"
    many = "\n".join(f"{apart} at{n}(int x) {{ return x > {n} ? x * 3 : x + {n}; }}" for n in range(200, 3200))
    path = compile_small(tmp_path, "many", f"{many}\nint main(void) {{ return at200(at3199(1)) == at1500(2); }}\n")
    reads: list[int] = []
    real = Tracee.read_counters

    def read_counters(tracee: Tracee, address: int, into: npt.NDArray[np.int64]) -> None:
        reads.append(into.nbytes)
        real(tracee, address, into)

    def closed(_: int) -> PageTable:
        raise PermissionError

    monkeypatch.setattr(Tracee, "read_counters", read_counters)
    if not seen:
        monkeypatch.setattr(counter_pages, "PageTable", closed)
    with streams_of() as streams, Tracee.start(program_of(path), streams) as tracee:
        counters = SiteCounters(tracee)
        for loaded in LoadWatch(tracee).new_images():
            counters.install(loaded)
        everything = sum(page_align(8 * len(image.sites)) for image in counters.images)
        assert not counters.read().any() and sum(reads) == 8 + (0 if seen else everything)
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.EXITING
        reads.clear()
        counts = counters.read()
        whole, again = sum(reads), counters.read()
    assert (counts == again).all() and sum(reads) == 2 * whole
    assert 8 * counters.columns > 5 * 4096 and (whole <= 4 * 4096 if seen else whole == 8 + everything)
    for name in ("at200", "at1500", "at3199"):
        sites, address = counters.images[0].sites, symbols(path)[name]
        assert counts[: len(sites)][sites.block_start == address].tolist() == [1]
    assert counts.sum() < 40
