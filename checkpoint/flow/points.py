# SPDX-License-Identifier: Apache-2.0
"""Choose the points of a region at which its flow is looked at more closely."""

from __future__ import annotations

import numpy as np

from checkpoint.flow.flow import Flow, Point

POINTS = 24
_DRAWN = 4
"""So many times as many executions are drawn as points are wanted: rare ones are drawn twice."""


def choose_points(flow: Flow, number: int = POINTS, seed: int = 1) -> tuple[Point, ...]:
    """So many executions of blocks of `flow`, fewer where it has fewer: up to one half taken from all blocks, so that
    rare code has its turn, the others from all executions."""
    if not flow.counts:
        return ()
    chance = np.random.default_rng(seed)
    places = sorted(flow.counts)
    counts = np.array([flow.counts[place] for place in places], dtype=np.int64)
    chosen: set[Point] = set()
    rarely = chance.choice(len(places), size=min(number // 2, len(places)), replace=False)
    often = chance.choice(len(places), size=_DRAWN * number, p=counts / counts.sum())
    for at in np.concatenate([rarely, often]).tolist():
        if len(chosen) < number:
            chosen.add(Point(places[at], int(chance.integers(1, counts[at] + 1))))
    return tuple(sorted(chosen))
