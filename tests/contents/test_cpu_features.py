# SPDX-License-Identifier: Apache-2.0
"""CPU features that a probe asks for: those its blocks and the C library use, no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_probe import made_manifest
from programs import build
from tracing import program_of, streams_of

from checkpoint.binary.isa import ISA_BASELINES
from checkpoint.errors import NodeUnfit
from checkpoint.process.program import Program
from probe.contents import cpu_features
from probe.contents.cpu_features import needed_features
from probe.formats.profile import Profile
from probe.node import facts
from probe.node.facts import check_features, cpu_flags
from probe.tracers import trace_program


def traced(program: Program) -> Profile:
    with streams_of() as streams:
        return trace_program(program, tracer="native", interval=0.01, streams=streams, cpu=None)


def held_to(path: Path, isa: str, *arguments: str) -> list[str]:
    """Features of a run in which the C library may choose by baseline `isa`."""
    program = program_of(path, *arguments)
    return needed_features(traced(Program(**{**vars(program), "isa": isa})))


def test_what_the_program_executes_is_asked_for(builds: Path) -> None:
    # At the lowest baseline nothing comes from the C library.
    assert {"avx", "avx2"} <= set(held_to(build("avx", builds), "x86-64", "60"))
    assert held_to(build("nbody", builds), "x86-64", "60") == []


def test_the_baseline_bounds_what_the_library_adds(builds: Path) -> None:
    found = {isa: set(held_to(build("nbody", builds), isa, "60")) for isa in ISA_BASELINES}
    assert not {f for f in found["x86-64-v3"] if f.startswith("avx512")}
    assert not {"avx", "avx2", "bmi2"} & found["x86-64-v2"]
    assert found["x86-64"] <= found["x86-64-v2"] <= found["x86-64-v3"] <= found["x86-64-v4"] <= found["native"]
    assert found["native"] <= cpu_flags()


def test_a_program_that_picks_by_itself(builds: Path) -> None:
    """It holds plain, AVX2 and AVX-512 versions and asks the CPU itself: what it picked is asked for, no more."""
    picked = held_to(build("ifunc", builds), "x86-64", "400")
    assert "avx2" in picked
    assert ("avx512f" in picked) == ("avx512f" in cpu_flags())
    assert set(picked) <= cpu_flags()


@pytest.mark.parametrize(
    ("isa", "wide", "asked"), [("x86-64-v3", False, False), ("native", False, True), ("native", True, False)]
)
def test_transactions_are_asked_for_where_the_library_uses_them(
    isa: str, wide: bool, asked: bool, builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor with them, as Intel's were: functions for AVX2 execute `xtest` there, those for AVX-512 do not."""
    made = traced(Program(**{**vars(program_of(build("nbody", builds), "60")), "isa": isa}))
    assert ("-RTM" in made.program.environment().get("GLIBC_TUNABLES", "")) == (isa == "x86-64-v3")
    flags = {"avx2", "bmi2", "rtm"} | ({"avx512vl", "avx512bw"} if wide else set())
    monkeypatch.setattr(cpu_features, "cpu_flags", lambda: flags)
    assert ("rtm" in needed_features(made)) == asked


def test_a_node_without_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = made_manifest(1, 5, program__cpu_features=("avx2", "bmi2", "fma"))
    monkeypatch.setattr(facts, "cpu_flags", lambda: {"avx2", "fma", "sse4_2"})
    with pytest.raises(NodeUnfit, match=r"lacks bmi2, .* --isa"):
        check_features(manifest)
    monkeypatch.setattr(facts, "cpu_flags", lambda: {"avx2", "fma", "bmi2"})
    check_features(manifest)
