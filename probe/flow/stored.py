# SPDX-License-Identifier: Apache-2.0
"""Flow of each phase where it was made: the probe's member `data/flow` (docs/probe-format.md).

Made when the probe is packed, read by `probe check`. Whoever reads it does not trust it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged
from checkpoint.flow.flow import MOST_KEPT, Calls, Flow, KeptWindow, Passed, Point
from probe.formats.checked import (
    ADDRESS,
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Unsound,
    many,
    optional,
    read,
    record,
    text,
    whole,
)

FLOW_NAME = "flow"
FORMAT_VERSION = 1
MOST_BYTES = 256 << 20
_DIGEST = text(32, r"[0-9a-f]{32}", "32 digits")
_SIGNED = whole(-(1 << 63), (1 << 63) - 1)
_MOST_STEPS = 1 << 24


@dataclass(frozen=True)
class StoredPoint:
    """A point that was passed: position of its block in `blocks`, which execution of it; executions of all blocks and a
    digest of them then; how many steps followed, of how many nobody knows the address, and a digest of all."""

    block: int = field(metadata=NUMBER)
    count: int = field(metadata=COUNT)
    executions: int = field(metadata=COUNT)
    state: str = field(metadata=_DIGEST)
    steps: int = field(metadata=whole(0, _MOST_STEPS))
    unknown: int = field(metadata=whole(0, _MOST_STEPS))
    window: str = field(metadata=_DIGEST)


@dataclass(frozen=True)
class StoredCalls:
    """System calls: (number, first argument, third argument) of the first, how many there were, a digest of them, and
    whether all were seen."""

    first: tuple[tuple[int, int, int], ...] = field(metadata=many(many(_SIGNED, 3, 3), 0, MOST_KEPT))
    made: int = field(metadata=COUNT)
    digest: str = field(metadata=_DIGEST)
    complete: bool = field(metadata=FLAG)


@dataclass(frozen=True)
class StoredFlow:
    """(image, address, executions) of every block that ran, images by their position in the member's list; calls, and
    points in the order in which they were passed, after each of which `steps` steps were made."""

    blocks: tuple[tuple[int, int, int], ...] = field(metadata=many(many(ADDRESS, 3, 3)))
    calls: StoredCalls = field(metadata=record(StoredCalls))
    points: tuple[StoredPoint, ...] = field(metadata=many(record(StoredPoint)))
    steps: int = field(metadata=whole(0, _MOST_STEPS))


@dataclass(frozen=True)
class StoredPhase:
    """A phase's flow, or why there is none."""

    id: int = field(metadata=NUMBER)
    missing: str = field(default="", metadata=TEXT)
    flow: StoredFlow | None = field(default=None, metadata=optional(record(StoredFlow)))

    def flaw(self) -> str:
        return "neither a flow nor a reason" if (self.flow is None) != bool(self.missing) else ""


@dataclass(frozen=True)
class StoredFlows:
    """All phases, and (path, SHA-256) of the images."""

    images: tuple[tuple[str, str], ...] = field(metadata=many(many(TEXT, 2, 2)))
    phases: tuple[StoredPhase, ...] = field(metadata=many(record(StoredPhase)))

    def flaw(self) -> str:
        if len({phase.id for phase in self.phases}) != len(self.phases):
            return "a phase twice"
        flows = [phase.flow for phase in self.phases if phase.flow is not None]
        if any(block[0] >= len(self.images) for flow in flows for block in flow.blocks):
            return "a block of no image"
        if any(point.block >= len(flow.blocks) for flow in flows for point in flow.points):
            return "a point at no block"
        return ""


@dataclass(frozen=True)
class PhaseFlow:
    """One phase: its flow and the steps made at each point, or why there is none."""

    flow: Flow | None
    steps: int = 0
    missing: str = ""


def encode(phases: Mapping[int, PhaseFlow]) -> bytes:
    """The member's bytes; `phases` by their numbers."""
    return strict_json.dumps(as_json(phases), separators=(",", ":")).encode()


def as_json(phases: Mapping[int, PhaseFlow]) -> dict[str, Any]:
    """The member's contents."""
    flows = [one.flow for one in phases.values() if one.flow is not None]
    images = sorted({item for flow in flows for item in flow.images.items()})
    stored = [
        StoredPhase(number, one.missing, _stored(one.flow, one.steps, images) if one.flow else None)
        for number, one in phases.items()
    ]
    return {"version": FORMAT_VERSION, **asdict(StoredFlows(tuple(images), tuple(stored)))}


def _stored(flow: Flow, steps: int, images: list[tuple[str, str]]) -> StoredFlow:
    number = {path: at for at, (path, sha256) in enumerate(images) if flow.images.get(path) == sha256}
    places = sorted(flow.counts)
    position = {place: at for at, place in enumerate(places)}
    points = tuple(
        StoredPoint(
            position[p.point.place], p.point.count, p.executions, p.state, len(p.window), p.window.unknown_steps,
            p.window.digest(),
        )
        for p in flow.passed
    )  # fmt: skip
    first = tuple((a, b, c) for a, b, c in flow.calls.first.tolist())
    return StoredFlow(
        blocks=tuple((number[path], offset, flow.counts[path, offset]) for path, offset in places),
        calls=StoredCalls(first, flow.calls.made, flow.calls.said, flow.calls.complete),
        points=points,
        steps=steps,
    )


def decode(data: bytes) -> dict[int, PhaseFlow]:
    """Inverse of `encode`; everything is checked. Raises ProbeFileDamaged for anything else, and other versions."""
    try:
        value = strict_json.loads(data)
        if isinstance(value, dict) and value.get("version", FORMAT_VERSION) != FORMAT_VERSION:
            raise ProbeFileDamaged(
                f"the probe's member data/{FLOW_NAME} has version {value['version']!r}; this program reads "
                f"{FORMAT_VERSION}: use a newer one"
            )
        return from_json(value)
    except (ValueError, RecursionError) as error:
        raise ProbeFileDamaged(
            f"the probe's member data/{FLOW_NAME} is damaged: {error}; build the probe again"
        ) from error


def from_json(value: Any) -> dict[int, PhaseFlow]:
    """Inverse of `as_json`. Raises ValueError."""
    if not isinstance(value, dict) or value.get("version") != FORMAT_VERSION:
        raise Unsound("no version that is known")
    found = read(StoredFlows, {name: one for name, one in value.items() if name != "version"})
    return {one.id: _read(one, found.images) for one in found.phases}


def _read(one: StoredPhase, images: tuple[tuple[str, str], ...]) -> PhaseFlow:
    if one.flow is None:
        return PhaseFlow(None, 0, one.missing)
    places = [(images[image][0], offset) for image, offset, _ in one.flow.blocks]
    calls = one.flow.calls
    kept = np.array(calls.first, dtype=np.int64).reshape(-1, 3)
    passed = tuple(
        Passed(Point(places[p.block], p.count), p.executions, p.state, KeptWindow(p.steps, p.window, p.unknown))
        for p in one.flow.points
    )
    counts = {place: count for place, (_, _, count) in zip(places, one.flow.blocks, strict=True)}
    flow = Flow(counts, Calls(kept, calls.made, calls.digest, calls.complete), passed, dict(images))
    return PhaseFlow(flow, one.flow.steps)
