# SPDX-License-Identifier: Apache-2.0
"""Seconds that synthesizing may take unasked: half of the build, and recording the flow counts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probe.pipeline import synthesize


def allowed(*, gone: float, images: float, flow: float, wall: float = 10.0) -> float:
    build = SimpleNamespace(
        began=time.monotonic() - gone,
        flatten_seconds=(images, flow),
        plan=SimpleNamespace(between=3),
        timed=SimpleNamespace(wall_seconds=wall),
    )
    return synthesize._allowed(cast(Any, build))


def test_half_of_the_build_is_for_the_flow_and_for_synthesizing() -> None:
    # 200 s until here without the flow, three runs of 10 s and three rounds of 5 s to come: half of 245 s for both.
    assert allowed(gone=220.0, images=5.0, flow=20.0) == pytest.approx(122.5 - 20.0, abs=0.5)


def test_a_short_build_has_some_seconds_for_it() -> None:
    assert allowed(gone=10.0, images=1.0, flow=9.0, wall=0.1) == 15.0
