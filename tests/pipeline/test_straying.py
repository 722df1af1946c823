# SPDX-License-Identifier: Apache-2.0
"""A timing run is stopped as soon as it cannot repeat the traced one, and not before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_profiles import INTERVAL
from tracing import compile_small, program_of, streams_of

from probe.pipeline.runs.boundaries import longest_rising
from probe.pipeline.runs.sound_boundaries import NotRepeated
from probe.pipeline.runs.straying import surely_lost
from probe.pipeline.validate import validate
from probe.tracers.native import trace

_LATE = 1000.0


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, _LATE]), max_size=12), st.integers(0, 8))
def test_nothing_is_lost_that_could_still_come(ends: list[float], cut: int) -> None:
    """`ends`: when each boundary is reached; _LATE: never."""
    last = np.array([np.nan if end == _LATE else end for end in ends])
    seen = np.where(last <= cut, last, np.nan)
    reached = last[np.isfinite(last)]
    bad = len(last) - len(longest_rising(reached))
    assert surely_lost(seen) <= bad
    # Where all that is stamped holds, and nothing is skipped, all may still come in order.
    if len(ends) and np.isnan(seen).all():
        assert surely_lost(seen) == 0


@pytest.mark.parametrize(
    ("stamped", "lost"),
    [
        ([], 0), ([1, 2, 3], 0), ([3, 2, 1], 2), ([None, None, 1], 1), ([None, 1, 2], 1), ([1, None, None], 0),
        ([1, 2, None, 3], 1), ([None, None, None, 1, 2, 3, 4], 3), ([5, 6, 7, 1, None, None], 1),
    ],
)  # fmt: skip
def test_what_is_lost(stamped: list[float | None], lost: int) -> None:
    assert surely_lost(np.array([np.nan if s is None else s for s in stamped], dtype=np.float64)) == lost


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
    with streams_of() as streams, pytest.raises(NotRepeated, match=r"was stopped: of .* can no longer come in order"):
        validate(profile, streams=streams)
    assert steps.stat().st_size < 800
