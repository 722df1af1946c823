# SPDX-License-Identifier: Apache-2.0
"""Trace programs that spend their time in libraries which choose code by the processor."""

from __future__ import annotations

import io
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from programs import build as compiled
from tracing import compile_small, program_of, streams_of

from checkpoint.errors import ProgramTooShort
from checkpoint.process.maps import MapEntry, chooses_code, is_own
from checkpoint.process.program import Program
from probe.formats.choices import SelectionOptions
from probe.pipeline.build import build
from probe.pipeline.options import BuildOptions
from probe.prediction import limits
from probe.prediction.limits import Limit
from probe.progress import Lines
from probe.tracers import library_time, native, trace_program
from probe.tracers.library_time import InLibraries, LibraryLooks

LIBRARY = """
#include <stdint.h>
__attribute__((noipa)) static uint64_t mixed(uint64_t x) { return (x ^ x >> 29) * 0xbf58476d1ce4e5b9u; }
uint64_t work(uint64_t rounds)
{
    static double field[4096];
    uint64_t x = 1;
    for (uint64_t i = 0; i < rounds; i++)
        x = mixed(x + i);
    for (uint64_t i = 0; i < rounds / 2000; i++)
        for (int k = 1; k < 4095; k++)
            field[k] = (field[k - 1] + field[k + 1]) * 0.4 + (double)(x >> 40 & k);
    return x + (uint64_t)field[7];
}
"""
MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
uint64_t work(uint64_t rounds);
int main(int argc, char **argv)
{
    (void)argc;
    printf("%lu\\n", (unsigned long)work(strtoul(argv[1], NULL, 10)));
    return 0;
}
"""
ROUNDS = "150000000"


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose whole work is one call of a library of that name."""
    folder = tmp_path_factory.mktemp("blas")
    (folder / "work.c").write_text(LIBRARY)
    subprocess.run(
        ["cc", "-O2", "-fPIC", "-shared", "-Wl,-soname,libblas.so.3", "-o", "libblas.so.3", "work.c"],
        cwd=folder,
        check=True,
    )
    return compile_small(folder, "solver", MAIN, "-Wl,--no-as-needed,-rpath,$ORIGIN", "./libblas.so.3")


def test_one_call_of_a_library_has_intervals(solver: Path) -> None:
    program = program_of(solver, ROUNDS)
    with streams_of() as streams:
        profile = trace_program(program, streams=streams)
    assert profile.program == replace(program, choosing=True)
    assert Program.from_json(profile.program.to_json()).choosing and "choosing" not in program.to_json()
    assert any(path.endswith("libblas.so.3") for path, _ in profile.images)
    assert len(profile.seconds) >= 20 and float(profile.seconds.max()) < 0.3 * float(profile.seconds.sum())


def test_without_a_second_try_there_would_be_none(solver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_time, "_LONG", math.inf)
    with streams_of() as streams, pytest.raises(ProgramTooShort):
        trace_program(program_of(solver, ROUNDS), streams=streams)


def test_what_is_counted_anyway_is_not_traced_again(builds: Path) -> None:
    with streams_of() as streams:
        profile = native.trace(program_of(compiled("flat", builds), "400"), interval=0.01, streams=streams)
    assert not profile.program.choosing


@pytest.mark.slow(minutes=1)
def test_such_a_program_becomes_a_probe(solver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Limit(1.0, math.inf)
    monkeypatch.setattr(
        limits, "LIMITS",
        replace(limits.LIMITS, asleep=harmless, waited=harmless, restore=harmless, unlike=harmless, single=harmless,
                held_out=harmless),
    )  # fmt: skip
    options = BuildOptions(runs=1, repeats=1, selection=SelectionOptions(max_phases=3), target_error=None)
    made = build(
        [str(solver), ROUNDS],
        tmp_path / "x.probe",
        options=options,
        work=tmp_path / "work",
        display=Lines(io.StringIO()),
    )
    assert made.manifest.phases and all(phase.direct for phase in made.manifest.phases)
    again = build(
        [str(solver), ROUNDS], tmp_path / "y.probe", options=options, work=tmp_path / "work", resume=True,
        display=Lines(io.StringIO()),
    )  # fmt: skip
    assert len(again.manifest.phases) == len(made.manifest.phases)


BLAS, LIBC = MapEntry(100, 200, "r-xp", 0, "/usr/lib/libblas.so.3"), MapEntry(300, 400, "r-xp", 0, "/lib/libc.so.6")


def looks(places: list[int], **more: Any) -> LibraryLooks:
    """Looks at a process that stands at these places, one after the other."""
    at = iter(places)
    process = SimpleNamespace(
        program=Program(("x",), "/x", "/", **more),
        registers=lambda: SimpleNamespace(rip=next(at)),
        mappings=lambda: [BLAS, LIBC],
    )
    return LibraryLooks(cast(Any, process), 0.01)


def test_it_is_the_library_that_must_be_busy() -> None:
    elsewhere = looks([350] * 30)
    for _ in range(30):
        assert elsewhere.wanted(1.0)
        elsewhere.look()
    often = looks([150, 350] * 8)
    for _ in range(7):
        assert often.wanted(1.0)
        often.look()
    assert often.wanted(1.0)
    with pytest.raises(InLibraries):
        often.look()


def test_a_stop_for_another_reason_is_no_look() -> None:
    asked = looks([150] * 8)
    for _ in range(20):
        asked.look()
        assert not asked.wanted(0.04)
        asked.look()


@pytest.mark.parametrize("more", [{"choosing": True}, {"threads": 2}])
def test_no_program_is_tried_twice(more: dict[str, Any]) -> None:
    assert not looks([], **more).wanted(10.0)


def test_no_library_that_spins_or_is_always_there_is_counted() -> None:
    for name in ("libc.so.6", "libgomp.so.1", "ld-linux-x86-64.so.2", "libm.so.6", "libpthread.so.0", "libiomp5.so"):
        assert not chooses_code(f"/usr/lib/{name}") and not is_own(f"/usr/lib/{name}")
    for name in ("libcrypto.so.3", "libopenblas.so.0", "libgmp.so.10", "libmkl_core.so.2", "liblapack.so.3"):
        assert chooses_code(f"/usr/lib/{name}") and not is_own(f"/usr/lib/{name}")
    assert not chooses_code("/usr/lib/libz.so.1")
