# SPDX-License-Identifier: Apache-2.0
"""Shares of time in the kernel: their arithmetic, and what stamps of a real program say."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import NodeMisbehaved
from checkpoint.event import EVENT_BYTES, FIRED, USAGE_KNOWN, event_of
from checkpoint.restore.criu_agent import region_times
from checkpoint.restore.criu_restore import RegionTime
from checkpoint.stubs.markers import read_stamp
from probe.candidates.agent_replies import region_time
from probe.formats.kernel_time import COARSEST_TICK, KernelShare, kernel_share
from probe.node.agent import _times


def record(flags: int, wall: int, cpu: int, kernel: int, faults: int) -> bytes:
    packed = struct.pack("<qII4q2q", 0, 0, flags, wall, 0, cpu, 500_000_000, kernel, faults)
    assert len(packed) == EVENT_BYTES
    return packed


def test_repeats_are_taken_together() -> None:
    found = kernel_share([0.01, 0.0, 0.02], [0.1, 0.1, 0.1])
    assert found is not None and found.share == pytest.approx(0.1)
    # Of 30 ticks 3: sqrt(0.1 x 0.9 / 30), somewhat more with half a tick on both sides.
    assert found.error == pytest.approx(math.sqrt(0.09 / 30), rel=0.1)


@given(st.floats(0, 1), st.integers(1, 50), st.floats(0.001, 10))
def test_errors_are_never_nothing_and_shrink_with_time(share: float, repeats: int, seconds: float) -> None:
    cpu = [seconds] * repeats
    found = kernel_share([share * c for c in cpu], cpu)
    longer = kernel_share([share * 4 * c for c in cpu], [4 * c for c in cpu])
    assert isinstance(found, KernelShare) and isinstance(longer, KernelShare)
    assert found.share == pytest.approx(share)
    assert 0 < longer.error < found.error <= 0.5
    if share * (1 - share) * seconds * repeats > 100 * COARSEST_TICK:
        assert longer.error == pytest.approx(found.error / 2, rel=0.05)


def test_what_was_not_stamped_is_not_zero() -> None:
    assert kernel_share([None, 0.01], [0.1, 0.1]) is None
    assert kernel_share([], []) is None
    assert kernel_share([], [0.1]) is None
    old = event_of(record(FIRED, 1, 1, 7, 7))
    assert old == (True, 1.0, 1.5, None, 7)
    stamp = read_stamp(record(FIRED, 1, 1, 7, 7))
    assert stamp is not None and math.isnan(stamp.kernel)
    assert "kernel" not in region_times(old, old, event_of(record(FIRED, 2, 2, 9, 9)))


def test_stamps_become_times() -> None:
    known = FIRED | USAGE_KNOWN
    warm, start, end = (event_of(record(known, at, at, 1000 * at, 10 * at)) for at in (1, 2, 5))
    line = region_times(warm, start, end)
    assert line["kernel"] == pytest.approx(0.003) and line["faults"] == 30
    back = event_of(record(known, 6, 6, 4000, 60))
    assert region_times(warm, end, back)["kernel"] == 0.0, "what the kernel took back"
    assert region_times(warm, start, event_of(record(known, 5, 5, 10**8, 60)))["kernel"] == 3.0, "more than there was"
    stamp = read_stamp(record(known, 1, 1, 2_000_000, 3))
    assert stamp is not None and stamp.kernel == 2.0


def test_nodes_tell_it_with_the_times() -> None:
    for time in (RegionTime(2.0, 1.0, 0.1, 0.1), RegionTime(2.0, 1.0, 0.1, 0.1, 0.25, 17)):
        assert region_time(_times(time), 1, 100.0) == time
    wrong: list[Any] = [
        [2.0, 1.0, 0.1, 0.1, 1.5, 17],
        [2.0, 1.0, 0.1, 0.1, 0.5, 1.5],
        [2.0, 1.0, 0.1, 0.1, -0.5, 17],
        [2.0, 1.0, 0.1, 0.1, 0.5],
        [2.0, 1.0, 0.1, 0.1, None, 17],
        [2.0, 1.0, 0.1, 0.1, 0.5, True],
    ]
    for times in wrong:
        with pytest.raises(NodeMisbehaved):
            region_time(times, 1, 100.0)
