# SPDX-License-Identifier: Apache-2.0
"""Programs that the Valgrind tracer refuses, and those that are hard for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from assembly import assembled
from programs import bad_file, build, run, symbols
from tracing import INTERVAL, compile_small, program_of, streams_of
from valgrind_traces import profile_of, traced

from checkpoint.errors import (
    ProbeError,
    ProgramFailed,
    ProgramNotRunnable,
    ProgramTooShort,
    ProgramUnsupported,
    StorageError,
    ToolMissing,
)
from probe.formats.profile import NO_FILE, NO_SITE
from probe.tracers import trace_program
from probe.tracers.valgrind import find_valgrind, record, trace


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
