# SPDX-License-Identifier: Apache-2.0
"""Turn a flow into arrays, and arrays into a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from checkpoint.flow.classes import NumberClasses
from checkpoint.flow.flow import Calls, Flow, Passed, Place, Point, Window

_WINDOW = ("places", "stack", "used", "unknown")


def pieces_of(
    counts: Mapping[Place, int],
    calls: Sequence[tuple[int, int, int]],
    passed: Sequence[Passed],
    classes: NumberClasses,
    in_copies: bool,
) -> dict[str, Any]:
    """Arrays by name; places are numbered by their position in the final counts, which hold every place."""
    places = sorted(counts)
    number = {place: at for at, place in enumerate(places)}
    paths = sorted({path for path, _ in places})
    said: dict[str, Any] = {
        "paths": np.array(paths, dtype=np.str_),
        "path": np.array([paths.index(path) for path, _ in places], dtype=np.int32),
        "offset": np.array([offset for _, offset in places], dtype=np.int64),
        "count": np.array([counts[place] for place in places], dtype=np.int64),
        "calls": np.array(calls, dtype=np.uint64).reshape(-1, 3),
        "classes": np.array(list(asdict(classes).values()), dtype=np.int64),
        "in_copies": np.array(in_copies),
        "points": np.array([(number[p.point.place], p.point.count) for p in passed], dtype=np.int64).reshape(-1, 2),
        "executions": np.array([p.executions for p in passed], dtype=np.int64),
        "states": np.array([p.state for p in passed], dtype=np.str_),
        "lengths": np.array([len(p.window) for p in passed], dtype=np.int64),
    }
    for name in _WINDOW:
        parts = [getattr(p.window, name) for p in passed]
        said[name] = np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)
    return said


def flow_of(said: Mapping[str, Any], images: Mapping[str, str], most_calls: int, seconds: float) -> Flow:
    """Inverse of `pieces_of`; where there are `most_calls` calls, some may be missing."""
    paths = said["paths"].tolist()
    places = [(paths[p], at) for p, at in zip(said["path"].tolist(), said["offset"].tolist(), strict=True)]
    ends = np.cumsum(said["lengths"]).tolist()
    passed = []
    for row, (place, count) in enumerate(said["points"].tolist()):
        span = slice(ends[row] - int(said["lengths"][row]), ends[row])
        window = Window(*(said[name][span] for name in _WINDOW))
        executions, state = int(said["executions"][row]), str(said["states"][row])
        passed.append(Passed(Point(places[place], count), executions, state, window))
    return Flow(
        counts=dict(zip(places, said["count"].tolist(), strict=True)),
        calls=Calls.of(said["calls"], len(said["calls"]) < most_calls),
        passed=tuple(passed),
        images=dict(images),
        classes=NumberClasses(*said["classes"].tolist()),
        seconds=seconds,
        in_copies=bool(said["in_copies"]),
    )
