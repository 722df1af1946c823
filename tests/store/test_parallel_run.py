# SPDX-License-Identifier: Apache-2.0
"""The JSON of runs: written and read again, and refused with the run and key that is wrong."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint import strict_json
from checkpoint.errors import ProbeError
from probe.store.parallel_run import ENERGY_SOURCES, ParallelRun, checked_run, runs_from_json

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=50)
seconds = st.floats(1e-3, 1e6)
counts = st.integers(1, 1 << 20)


@st.composite
def runs(draw: st.DrawFn) -> ParallelRun:
    runtime = draw(seconds)
    energy = draw(st.none() | seconds)
    return ParallelRun(
        app=draw(names), kernel=draw(names), node_type=draw(texts), cores=draw(counts), ranks=draw(counts),
        runtime=runtime, work=draw(seconds), source=draw(texts), nodes=draw(counts), threads=draw(counts),
        config=draw(st.text("0123456789abcdef", max_size=64)), parameters=draw(st.dictionaries(names, seconds)),
        ended_at=draw(seconds), mpi=draw(st.none() | st.floats(0, runtime / 4)),
        io=draw(st.none() | st.floats(0, runtime / 4)), coupling=draw(st.none() | st.floats(0, runtime / 4)),
        wait=draw(st.none() | seconds), energy=energy,
        energy_source="" if energy is None else draw(st.sampled_from(ENERGY_SOURCES)), shared=draw(st.booleans()),
        benchmark=draw(st.booleans()), notes=draw(st.dictionaries(names, texts)),
    )  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(st.lists(runs(), max_size=2))
def test_what_is_written_is_read(given_runs: list[ParallelRun]) -> None:
    text = strict_json.dumps({"format_version": 1, "runs": [run.to_json() for run in given_runs]})
    assert runs_from_json(strict_json.loads(text)) == given_runs


GOOD: dict[str, Any] = {
    "app": "fusion", "kernel": "gem", "node_type": "haswell", "cores": 4, "ranks": 4, "runtime": 12.0, "work": 3.0,
    "source": "json:1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("app", "", "no name"), ("kernel", "a b", "no name"), ("node_type", "", "must not be empty"),
        ("source", "x" * 300, "255 characters"), ("cores", 0, "no number above 0"), ("cores", 4.0, "no number above 0"),
        ("ranks", True, "no number above 0"), ("threads", 1 << 40, "no number above 0"), ("runtime", 0, "above 0"),
        ("runtime", None, "no number"), ("runtime", math.nan, "no number"), ("runtime", "12", "no number"),
        ("work", -1, "above 0"), ("mpi", 13.0, "take 13 s of a run of 12 s"), ("io", -1, "is negative"),
        ("energy", 5.0, "energy needs a source"), ("energy_source", "hand", "a source needs energy"),
        ("shared", 1, "neither true nor false"), ("notes", {"a": 1}, "no text"), ("notes", [{"name": "a"}], "value"),
        ("parameters", {"nx": "4"}, "no number"), ("config", "a\0b", "no text"), ("colour", "red", "unknown key"),
        ("ended_at", -1, "no time of day"),
    ],
)  # fmt: skip
def test_what_is_no_run(key: str, value: Any, said: str) -> None:
    with pytest.raises(ProbeError, match=said):
        checked_run({**GOOD, key: value}, "run 1")


@pytest.mark.parametrize("key", list(GOOD))
def test_nothing_that_is_needed_may_be_missing(key: str) -> None:
    with pytest.raises(ProbeError, match=f"run 3: .*{key}"):
        checked_run({k: v for k, v in GOOD.items() if k != key}, "run 3")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda i: (
            st.lists(i)
            | st.dictionaries(
                st.sampled_from([*(one.name for one in fields(ParallelRun)), "format_version", "runs"]), i
            )
        ),
    )
)
def test_anything_else_is_refused_as_such(said: Any) -> None:
    for value in (said, {"format_version": 1, "runs": said}, {"format_version": 1, "runs": [said]}):
        try:
            runs_from_json(value)
        except ProbeError:
            continue
        assert value["runs"] == []
