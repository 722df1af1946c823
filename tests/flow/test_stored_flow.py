# SPDX-License-Identifier: Apache-2.0
"""The member `data/flow`: what is written is read again, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import ProbeFileDamaged
from checkpoint.flow.comparing import compare
from checkpoint.flow.flow import Calls, Flow, Passed, Point, Window, state_of
from probe.flow.stored import FORMAT_VERSION, PhaseFlow, decode, encode

_WORDS = st.integers(0, 2**64 - 1)
_PLACES = st.tuples(st.sampled_from(["/bin/solver", "/lib/libm.so.6"]), st.integers(0, 2**40))


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    counts = draw(st.dictionaries(_PLACES, st.integers(1, 2**50), min_size=1, max_size=5))
    calls = Calls.of(draw(st.lists(st.tuples(st.integers(0, 500), _WORDS, _WORDS), max_size=5)), draw(st.booleans()))
    passed = []
    for place in draw(st.lists(st.sampled_from(sorted(counts)), unique=True)):
        words = np.array(draw(st.lists(_WORDS, min_size=1, max_size=3)), dtype=np.uint64)
        window = Window(words, words, words, np.zeros(len(words), dtype=np.bool_))
        passed.append(Passed(Point(place, 1), 1, state_of({place: 1}), window))
    return Flow(counts, calls, tuple(passed), {"/bin/solver": "1" * 64, "/lib/libm.so.6": "2" * 64})


@given(flows())
def test_a_flow_is_read_as_it_was_written(flow: Flow) -> None:
    found = decode(encode({3: PhaseFlow(flow, 7), 4: PhaseFlow(None, 0, "it sleeps")}))
    assert set(found) == {3, 4}
    read = found[3].flow
    assert read is not None and found[3].steps == 7
    assert read.counts == flow.counts and read.images == flow.images
    assert [p.point for p in read.passed] == [p.point for p in flow.passed]
    assert compare(flow, read).none
    assert found[4] == PhaseFlow(None, 0, "it sleeps")


def _member(**changed: Any) -> dict[str, Any]:
    window = Window(*(np.zeros(1, dtype=np.uint64) for _ in range(3)), np.zeros(1, dtype=np.bool_))
    place = ("/bin/solver", 16)
    passed = (Passed(Point(place, 1), 1, state_of({place: 1}), window),)
    flow = Flow({place: 1}, Calls.of([(1, 2, 3)], True), passed, {"/bin/solver": "1" * 64})
    value: dict[str, Any] = json.loads(encode({0: PhaseFlow(flow, 1)}))
    return {**value, **changed}


def test_another_version_is_named() -> None:
    with pytest.raises(ProbeFileDamaged, match="data/flow has version 9; this program reads 1: use a newer one"):
        decode(json.dumps(_member(version=9)).encode())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": None}, "version None"),
        ({"images": []}, "a block of no image"),
        ({"phases": [{"id": 0, "missing": ""}]}, "neither a flow nor a reason"),
        ({"phases": [{"id": 0, "missing": "a"}, {"id": 0, "missing": "a"}]}, "a phase twice"),
        ({"phases": 3}, "phases"),
    ],
)
def test_what_no_build_writes_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ProbeFileDamaged, match=said):
        decode(json.dumps(_member(**changed)).encode())


def test_a_point_at_no_block_is_refused() -> None:
    value = _member()
    value["phases"][0]["flow"]["points"][0]["block"] = 5
    with pytest.raises(ProbeFileDamaged, match="a point at no block"):
        decode(json.dumps(value).encode())
    assert FORMAT_VERSION == 1
