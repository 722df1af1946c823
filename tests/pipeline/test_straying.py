# SPDX-License-Identifier: Apache-2.0
"""A timing run is stopped as soon as it cannot repeat the traced one, and not before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_profiles import INTERVAL, made
from tracing import compile_small, program_of, streams_of

from probe.pipeline.runs.boundaries import Candidate
from probe.pipeline.runs.sound_boundaries import NotRepeated
from probe.pipeline.runs.straying import Stamped, Straying, far_off, surely_lost
from probe.pipeline.validate import validate
from probe.tracers.native import trace

_LATE = 1000.0


def lost_at(ends: list[list[float]], cut: float) -> int:
    """Of a run that has gone on until `cut`. `ends`: when the candidates of each boundary are reached; _LATE: never."""
    stamped = [Stamped(at, end, 0) for at, those in enumerate(ends) for end in those if end <= cut]
    return surely_lost(stamped, np.array([any(end > cut for end in those) for those in ends], dtype=bool))


def most_that_hold(ends: list[list[float]]) -> int:
    """Boundaries in the longest row that is in order, by trying all."""
    rows = {0: 0.0}
    for those in ends:
        for length, last in sorted(rows.items(), reverse=True):
            later = [end for end in those if last < end < _LATE]
            if later:
                rows[length + 1] = min(rows.get(length + 1, _LATE), *later)
    return max(rows)


times = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, _LATE])


@given(st.lists(st.lists(times, min_size=1, max_size=3), max_size=9), st.integers(0, 8))
def test_nothing_is_lost_that_could_still_come(ends: list[list[float]], cut: int) -> None:
    assert lost_at(ends, cut) <= len(ends) - most_that_hold(ends)
    assert lost_at(ends, 7.0) <= len(ends) - most_that_hold(ends)
    # Where nothing is stamped all may still come in order.
    assert lost_at(ends, 0.5) == 0


@given(st.lists(st.lists(times.filter(lambda time: time < _LATE), min_size=1, max_size=3), max_size=9))
def test_all_is_known_at_the_end(ends: list[list[float]]) -> None:
    assert lost_at(ends, 7.0) == len(ends) - most_that_hold(ends)


@pytest.mark.parametrize(
    ("stamped", "lost"),
    [
        ([], 0), ([1, 2, 3], 0), ([3, 2, 1], 2), ([_LATE, _LATE, 1], 1), ([_LATE, 1, 2], 1), ([1, _LATE, _LATE], 0),
        ([1, 2, _LATE, 3], 1), ([_LATE, _LATE, _LATE, 1, 2, 3, 4], 3), ([5, 6, 7, 1, _LATE, _LATE], 1),
    ],
)  # fmt: skip
def test_what_is_lost(stamped: list[float], lost: int) -> None:
    assert lost_at([[time] for time in stamped], 7.0) == lost


def test_a_boundary_holds_by_any_of_its_candidates() -> None:
    assert lost_at([[4.0], [1.0, 5.0], [6.0]], 7.0) == 0
    assert lost_at([[4.0], [1.0, _LATE], [6.0]], 7.0) == 1
    assert lost_at([[4.0], [1.0, _LATE], [_LATE]], 7.0) == 0


def test_markers_that_fire_far_from_their_places_are_counted() -> None:
    steady = [Stamped(at, float(at), 0) for at in range(100)]
    late = [Stamped(at, at + 4.5, 1) for at in range(90)]
    turned = [Stamped(at, (at + 50) % 100 + 0.5, 2) for at in range(100)]
    assert far_off([*steady, *late, *turned], 5) == 1 and far_off([*steady, *late, *turned], 3) == 2
    assert far_off([*steady, *late], 5) == 0 == far_off(steady, 0) == far_off([], 0)


_TURNED = """
#include <fcntl.h>
#include <unistd.h>
static volatile long done;
__attribute__((noipa)) static void turns(void) { for (int i = 0; i < 3000; i++) done++; }
__attribute__((noipa)) static void one(void) { for (int i = 0; i < 1000; i++) turns(); }
__attribute__((noipa)) static void other(void) { for (int i = 0; i < 1000; i++) turns(); }
int main(int argc, char **argv)
{
	int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (write(file, ".", 1) != 1)
		return 1;
	int turned = lseek(file, 0, SEEK_END) > 1;
	int steps = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0600);
	for (int i = 0; i < 1000; i++) {
		((i < 300) != turned ? one : other)();
		if (write(steps, ".", 1) != 1)
			return 1;
	}
	return 0;
}
"""


def test_a_run_that_goes_another_way_is_not_waited_for(tmp_path: Path) -> None:
    path, tally, steps = compile_small(tmp_path, "turned", _TURNED), tmp_path / "tally", tmp_path / "steps"
    with streams_of() as streams:
        profile = trace(program_of(path, str(tally), str(steps)), interval=INTERVAL, streams=streams)
    assert steps.stat().st_size == 1000
    with streams_of() as streams, pytest.raises(NotRepeated, match=r"was stopped: \d of \d markers fire far from"):
        validate(profile, streams=streams)
    assert steps.stat().st_size < 800


def test_what_is_far_in_part_of_a_run_is_said() -> None:
    """A run that left the traced one's way for a while may be made again."""
    profile = made(np.full((41, 3), 100))
    look = Straying(profile, [])._judge
    steady = [Stamped(at, float(at), 0) for at in range(40)]
    early = [Stamped(at, at - 10.5, marker) for marker in (1, 2) for at in range(30, 40)]
    with pytest.raises(
        NotRepeated, match="2 of 3 markers fire far from their places; the run was at the 40th"
    ) as found:
        look([*steady, *early], np.zeros(40, dtype=bool))
    assert found.value.partly
    look([*steady, *early[:10]], np.zeros(40, dtype=bool))
    with pytest.raises(NotRepeated, match="of 40 interval boundaries 39 can no longer come in order") as found:
        Straying(profile, [Candidate(at, 0, at) for at in range(1, 41)])._judge(steady[:1], np.zeros(40, dtype=bool))
    assert not found.value.partly
