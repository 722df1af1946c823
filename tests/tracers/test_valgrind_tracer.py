# SPDX-License-Identifier: Apache-2.0
"""The Valgrind tracer: exact vectors of programs known instruction by instruction, and agreement with others.

The others are the counting stubs on the real processor, and two tools of Valgrind's own: exp-bbv and callgrind.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from assembly import LOOP, SPLIT, STRINGS, assembled, blocks_of_loop, blocks_of_split
from programs import bad_file, build, expected_counts, run, symbols
from tracing import INTERVAL, Traced, compile_small, count_run, program_of, recorded_run, streams_of

from checkpoint.errors import (
    Diverged,
    ProbeError,
    ProgramFailed,
    ProgramNotRunnable,
    ProgramTooShort,
    ProgramUnsupported,
    StorageError,
    ToolMissing,
)
from probe.formats.choices import INSTRUCTIONS
from probe.formats.intervals import vectors, work
from probe.formats.profile import NO_FILE, NO_SITE, Profile, load_profile, save_profile
from probe.pipeline.boundaries import Candidate, candidates, site_counts
from probe.pipeline.validate import MOST_SHIFT, StampedRun, merge_bad_boundaries, stamped_run, validate
from probe.selection.select import select_phases
from probe.tracers import trace_program
from probe.tracers.stream import read_stream
from probe.tracers.valgrind import build_tool, find_valgrind, record, trace


def traced(path: Path, *arguments: str, interval: int = INTERVAL) -> Traced:
    return recorded_run(program_of(path, *arguments), interval)


def profile_of(path: Path, *arguments: str, interval: int = 1_000_000) -> Profile:
    with streams_of() as streams:
        profile = trace(program_of(path, *arguments), interval=interval, streams=streams)
        assert streams.stdout.read_text() == run(path, *arguments).stdout
    return profile


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


# -- Valgrind's own tools


@dataclass(frozen=True)
class Tools:
    """The same program under our tool and under Valgrind's, in one environment to the byte: a startup that reads its
    environment takes longer with a longer one."""

    folder: Path

    @staticmethod
    def beside(folder: Path) -> Tools:
        installation = find_valgrind()
        for path in installation.support.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "probe-amd64-linux").symlink_to(build_tool(installation))
        return Tools(folder)

    def run(self, tool: str, path: Path, *arguments: str, options: Sequence[str]) -> None:
        program = program_of(path, *arguments)
        subprocess.run(
            ["setarch", "-R", "valgrind", f"--tool={tool}", "--log-file=log", "--vgdb=no", *options, path, *arguments],
            check=True, stdout=subprocess.DEVNULL, cwd=self.folder,
            env={**program.environment(), "VALGRIND_LIB": str(self.folder)},
        )  # fmt: skip

    def ours(self, path: Path, *arguments: str, interval: int = 1 << 40) -> Traced:
        self.run("probe", path, *arguments, options=["--stream=stream", f"--interval={interval}", "--slack=0"])
        return Traced(read_stream(self.folder / "stream"), "")

    def exp_bbv(self, path: Path, *arguments: str, interval: int) -> list[Counter[int]]:
        """Instructions of each block in each interval, by address."""
        files = ["--bb-out-file=bb", "--pc-out-file=pc"]
        self.run("exp-bbv", path, *arguments, options=[*files, f"--interval-size={interval}"])
        addresses = dict(re.findall(r"^F:(\d+):([0-9a-f]+):", (self.folder / "pc").read_text(), re.M))
        return [
            Counter({int(addresses[number], 16): int(count) for number, count in re.findall(r":(\d+):(\d+)", line)})
            for line in (self.folder / "bb").read_text().splitlines()
            if line.startswith("T")
        ]

    def repeats(self) -> tuple[int, int]:
        """After exp-bbv: turns of string instructions, and how many of these there were."""
        said = (self.folder / "log").read_text()
        turns, instructions = (re.search(rf"{name} reps: (\d+)", said) for name in ("Total", "Unique"))
        assert turns and instructions
        return int(turns[1]), int(instructions[1])

    def callgrind(self, path: Path, *arguments: str) -> int:
        """Instructions of the whole run."""
        self.run("callgrind", path, *arguments, options=["--callgrind-out-file=cg"])
        found = re.search(r"^totals: (\d+)", (self.folder / "cg").read_text(), re.M)
        assert found
        return int(found[1])


STARTUP = 300
"""Instructions by which two runs of a C program differ before main() and after it, of millions."""


def instructions_by_address(run_of: Traced, path: Path, row: np.ndarray) -> Counter[int]:
    mine, start = run_of.link_addresses(path)
    return Counter(
        {int(a): int(n) for a, n in zip(start, row[mine] * run_of.recorded.instructions[mine], strict=True) if n}
    )


def agreement_program(name: str, folder: Path, builds: Path) -> tuple[Path, tuple[str, ...]]:
    if name == "callpop":
        return build("callpop", builds, "static"), ("20",)
    body = {"strings": STRINGS, "split": SPLIT.replace("{rounds}", "1000")}[name]
    return assembled(folder, name, body), ()


@pytest.mark.parametrize("name", ["strings", "split", "callpop"])
def test_exp_bbv_finds_the_same_in_every_block(name: str, builds: Path, tmp_path: Path) -> None:
    """Static programs at fixed addresses. exp-bbv writes an interval when it has one instruction more than its size,
    and never the last: with one less than the run has in all, the interval holds them all. A string instruction it
    counts where it ends, which may be in the block behind."""
    tools = Tools.beside(tmp_path)
    path, arguments = agreement_program(name, tmp_path, builds)
    run_of = tools.ours(path, *arguments)
    ours = instructions_by_address(run_of, path, run_of.totals())
    total = int(run_of.recorded.lengths.sum())
    startup = STARTUP if name == "callpop" else 0
    (theirs,) = tools.exp_bbv(path, *arguments, interval=total - 1 - startup)
    assert sum(ours.values()) == total and total - startup <= sum(theirs.values()) <= total
    moved = sum(abs(ours[a] - theirs[a]) for a in ours.keys() | theirs.keys())
    assert moved <= 2 * tools.repeats()[1] + 2 * startup
    assert name != "split" or theirs == ours


def test_intervals_of_exp_bbv_are_the_same_but_for_the_block_on_each_boundary(tmp_path: Path) -> None:
    """exp-bbv cuts inside a block; ours belongs to the interval it begins in."""
    tools = Tools.beside(tmp_path)
    path = assembled(tmp_path, "split", SPLIT.replace("{rounds}", "100000"))
    ours, theirs = tools.ours(path, interval=INTERVAL), tools.exp_bbv(path, interval=INTERVAL)
    rows = ours.recorded.counts.toarray()
    assert len(rows) == len(theirs) + 1 > 4
    longest = int(ours.recorded.instructions.max())
    for row, their in zip(rows, theirs, strict=False):
        our = instructions_by_address(ours, path, row)
        assert all(abs(our[a] - their[a]) <= 2 * longest for a in our.keys() | their.keys())


@pytest.mark.parametrize("name", ["strings", "split", "callpop"])
def test_callgrind_counts_the_same_instructions(name: str, builds: Path, tmp_path: Path) -> None:
    """But for each turn of a string instruction, and without the block whose system call ends the program."""
    tools = Tools.beside(tmp_path)
    path, arguments = agreement_program(name, tmp_path, builds)
    ours = int(tools.ours(path, *arguments).recorded.lengths.sum())
    tools.exp_bbv(path, *arguments, interval=INTERVAL)
    turns, instructions = tools.repeats()
    last = ours + turns - instructions - tools.callgrind(path, *arguments)
    assert last == 3 if name != "callpop" else abs(last) < STARTUP


# -- profiles, and markers that are found again natively


@pytest.fixture(scope="module")
def sorter(builds: Path) -> Profile:
    return profile_of(build("sorter", builds), "1", interval=50_000_000)


def test_a_profile_of_all_code(sorter: Profile) -> None:
    profile = sorter
    assert profile.written == (), "files of the program alone"
    assert profile.unit == INSTRUCTIONS and profile.tracer == "valgrind" and profile.interval == 50_000_000
    lengths = profile.instructions()
    assert (np.abs(lengths[:-1] - 50_000_000) < 200).all() and 0 < lengths[-1] < 50_000_200
    names = {Path(path).name: i for i, (path, _) in enumerate(profile.images)}
    assert {"libc.so.6", "sorter"} <= names.keys()
    placed = profile.blocks.site != NO_SITE
    assert set(profile.blocks.image[placed].tolist()) == {names["sorter"]}, "markers in the program's own code only"
    assert set(profile.executed.image.tolist()) == {names["sorter"]}
    assert profile.markers.boundary.max() < profile.intervals
    assert (profile.markers.distance < 0.01 * profile.interval).all()
    assert (profile.seconds > 0).all() and profile.cpu_seconds > 0


def test_a_profile_is_read_as_it_was_written(builds: Path, tmp_path: Path) -> None:
    profile = profile_of(build("callpop", builds), "2000", interval=10_000_000)
    save_profile(profile, tmp_path / "x.profile")
    read = load_profile(tmp_path / "x.profile")
    assert (read.counts != profile.counts).nnz == 0
    for name in ("boundary", "column", "distance"):
        assert (getattr(read.markers, name) == getattr(profile.markers, name)).all()


def test_every_boundary_is_found_natively(sorter: Profile) -> None:
    profile = sorter
    wanted = candidates(profile)
    with streams_of() as streams:
        found = stamped_run(profile, wanted, streams=streams)
    assert np.isfinite(found.wall).all()
    totals = np.asarray(site_counts(profile).sum(axis=0)).ravel()
    assert found.totals == {column: totals[column] for column in found.totals}
    timed = merge_bad_boundaries(profile, wanted, found)
    assert timed.missing == timed.out_of_order == timed.shifted == 0
    assert timed.intervals >= profile.intervals - timed.unmarked - 1
    assert timed.agreeing == timed.compared > 0


def drifting(run: StampedRun, profile: Profile, column: int, intervals: float) -> StampedRun:
    """The run as if one marker had been executed more often natively, by so many intervals' worth."""
    more = round(run.totals[column] * (1 + intervals / profile.intervals))
    return replace(run, totals={**run.totals, column: more})


def test_a_small_shift_is_tolerated_and_a_large_one_is_not(sorter: Profile) -> None:
    profile = sorter
    wanted = candidates(profile)
    with streams_of() as streams:
        found = stamped_run(profile, wanted, streams=streams)
    often = max(found.totals, key=lambda column: found.totals[column])
    small = merge_bad_boundaries(profile, wanted, drifting(found, profile, often, MOST_SHIFT / 2))
    assert small.shifted == 1 and small.agreeing == small.compared and small.missing == 0
    everything = found
    for column in found.totals:
        everything = drifting(everything, profile, column, 3 * MOST_SHIFT)
    with pytest.raises(Diverged, match=r"were not reached .* --tracer native"):
        merge_bad_boundaries(profile, wanted, everything)


def test_other_candidates_take_the_place_of_those_that_drift(sorter: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = sorter
    runs: list[set[int]] = []

    def with_drift(profile: Profile, wanted: list[Candidate], **rest: object) -> StampedRun:
        found = stamped_run(profile, wanted, **rest)  # type: ignore[arg-type]
        runs.append(set(found.totals))
        if len(runs) == 1:
            for column in found.totals:
                found = drifting(found, profile, column, 1)
        return found

    monkeypatch.setattr("probe.pipeline.validate.stamped_run", with_drift)
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
        assert streams.stdout.read_text().count("sorter") == 1, "the output is that of the last run alone"
    assert len(runs) == 2 and not runs[0] & runs[1]
    assert timed.missing == 0 and timed.intervals > profile.intervals // 2


def phases_over_time(profile: Profile) -> np.ndarray:
    """The phase at each of a thousand moments of the timing run. Every instruction is taken to last equally long: the
    vectors alone decide."""
    with streams_of() as streams:
        timed = validate(profile, streams=streams)
    eligible = np.ones(timed.intervals, dtype=bool)
    eligible[[0, -1]] = False
    instructions = work(profile, timed)
    found = select_phases(vectors(profile, timed), instructions, np.maximum(instructions, 1.0), eligible)
    ends = np.cumsum(timed.cpu)
    return found.labels[np.searchsorted(ends, (np.arange(1000) + 0.5) / 1000 * ends[-1])]


def share_told(told: np.ndarray, telling: np.ndarray) -> float:
    """The share of the moments at which the phase in `telling` tells that in `told`: the one it mostly comes with."""
    return sum(np.bincount(told[telling == phase] + 1).max() for phase in np.unique(telling)) / len(told)


def test_native_and_exact_vectors_give_the_same_phases(sorter: Profile, builds: Path) -> None:
    """But for their number: exact vectors hold libraries too, and are divided more finely. Boundaries lie elsewhere."""
    with streams_of() as streams:
        program = program_of(build("sorter", builds), "1")
        native = trace_program(program, tracer="native", interval=0.02, streams=streams)
    ours, theirs = phases_over_time(native), phases_over_time(sorter)
    assert len(np.unique(ours)) > 2
    by_chance = share_told(ours, np.random.default_rng(1).permutation(theirs))
    assert share_told(ours, theirs) > max(0.65, by_chance + 0.2)


# -- what cannot be traced


@pytest.mark.parametrize(
    ("name", "what"),
    [("threads", "started a thread"), ("forker", "started a child"), ("vforker", "started a child")],
)
def test_threads_and_children_are_refused(name: str, what: str, builds: Path) -> None:
    with pytest.raises(ProgramUnsupported, match=what):
        traced(build(name, builds), "10")


@pytest.mark.parametrize(("name", "reason"), [("crash", "SIGSEGV"), ("abort", "SIGABRT")])
def test_failures_are_the_programs(name: str, reason: str, builds: Path) -> None:
    with pytest.raises(ProgramFailed, match=reason):
        traced(build(name, builds))


def test_any_exit_status_is_one(builds: Path) -> None:
    path = build("fail", builds)
    with streams_of() as streams:
        assert trace(program_of(path, "20"), interval=100_000, streams=streams).exit_status == 3
    with streams_of() as streams, pytest.raises(ProgramFailed, match="status 3 before there was enough to trace"):
        trace(program_of(path, "20"), interval=1_000_000_000, streams=streams)


def test_an_instruction_that_valgrind_lacks_is_named(tmp_path: Path) -> None:
    path = assembled(tmp_path, "wide", " vpaddd %zmm1, %zmm2, %zmm3")
    with pytest.raises(ToolMissing, match=r"does not know the instruction `vpaddd zmm3,zmm2,zmm1` \(62 f1"):
        traced(path)


def test_a_program_that_tries_its_processor_goes_on(tmp_path: Path) -> None:
    """What Valgrind lacks is no error where the program has caught the signal."""
    source = (
        "#include <setjmp.h>\n#include <signal.h>\n#include <stdio.h>\nstatic sigjmp_buf back;\n"
        "static void on_illegal(int number) { (void)number; siglongjmp(back, 1); }\n"
        "int main(void) { signal(SIGILL, on_illegal); if (!sigsetjmp(back, 1)) "
        '__asm__ volatile(".byte 0x62, 0xf1, 0x6d, 0x48, 0xfe, 0xd9"); return puts("went on") < 0; }\n'
    )
    assert traced(compile_small(tmp_path, "tries", source)).stdout == "went on\n"


def test_a_32_bit_successor_is_refused(tmp_path: Path) -> None:
    small = bad_file("elf32", tmp_path)
    path = compile_small(
        tmp_path, "goer", f'#include <unistd.h>\nint main(void) {{ return execl("{small}", "elf32", (char *)0); }}'
    )
    with pytest.raises(ProgramUnsupported, match="32-bit"):
        traced(path)


def test_short_programs_and_intervals(builds: Path) -> None:
    with streams_of() as streams:
        with pytest.raises(ProgramTooShort, match="at least 5"):
            trace(program_of(build("short", builds)), interval=INTERVAL, streams=streams)
        with pytest.raises(ProbeError, match="less than the tracer's 100,000"):
            trace_program(program_of(build("short", builds)), tracer="valgrind", interval=0.05, streams=streams)


def test_a_full_disk_is_a_storage_error(builds: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "probe-test", folder], check=True)
    try:
        with streams_of(folder) as streams, pytest.raises(StorageError, match="could not be written"):
            record(program_of(build("callpop", builds), "200"), interval=INTERVAL, streams=streams)
    finally:
        subprocess.run(["umount", folder], check=True)


def test_code_made_at_run_time_is_counted_and_never_a_marker(builds: Path) -> None:
    profile = profile_of(build("jit", builds), "5", interval=500_000)
    made = profile.blocks.image == NO_FILE
    calls = np.asarray(profile.counts.sum(axis=0)).ravel()[made]
    assert 500_000 in calls.tolist(), "the generated function, 100 times in each of 5,000 rounds"
    assert (profile.blocks.site[made] == NO_SITE).all()
    assert not made[profile.markers.column].any()


PATCHING = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

__attribute__((noipa, aligned(4096))) unsigned patched(void)
{
    unsigned value;
    __asm__ volatile(".globl site_patched\\nsite_patched: movl $0x11111111, %0" : "=r"(value));
    return value;
}

int main(int argc, char **argv)
{
    long rounds = atol(argv[argc - 1]);
    unsigned char *code = (unsigned char *)patched;
    unsigned long sum = 0;
    int at = 0;
    if (mprotect(code, 4096, PROT_READ | PROT_WRITE | PROT_EXEC))
        return 1;
    while (*(unsigned *)(code + at) != 0x11111111)
        at++;
    for (long i = 0; i < rounds; i++) {
        *(volatile unsigned *)(code + at) = (unsigned)i;
        sum += patched();
    }
    printf("%lu\\n", sum);
    return 0;
}
"""


def test_a_program_that_changes_its_own_code_is_followed_and_holds_no_marker_there(tmp_path: Path) -> None:
    """By itself Valgrind goes on with the code as it was: the sum would be another."""
    path = compile_small(tmp_path, "patching", PATCHING, "-fno-pie", "-no-pie")
    run_of = traced(path, "50000")
    assert run_of.stdout == f"{sum(range(50_000))}\n" == run(path, "50000").stdout
    site = symbols(path)["site_patched"]
    assert run_of.executions(path, site) == 50_000
    mine, start = run_of.link_addresses(path)
    changed = mine[(start <= site) & (site < start + run_of.recorded.size[mine])]
    assert not np.isin(run_of.recorded.candidates.block, changed).any()
    assert len(run_of.recorded.candidates.block) > 0


def test_a_32_bit_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramNotRunnable, match="32-bit"):
        traced(bad_file("elf32", tmp_path))


def test_valgrind_is_found_or_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="valgrind is not installed"):
        find_valgrind()
    (tmp_path / "bin").mkdir()
    own = tmp_path / "bin" / "valgrind"
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    own.write_text("#!/bin/sh\nexit 3\n")
    own.chmod(0o755)
    with pytest.raises(ToolMissing, match="does not run"):
        find_valgrind()
    own.write_text("#!/bin/sh\necho valgrind-3.19.0\n")
    with pytest.raises(ToolMissing, match=r"3\.19\.0 .* comes without what its tools are built with"):
        find_valgrind()


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
