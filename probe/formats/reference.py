# SPDX-License-Identifier: Apache-2.0
"""Time that the whole program took on the reference node, by itself: ET_ref. Standard library alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from probe.formats.checked import SHARE, TIME, many, one_of, read

Clock = Literal["wall", "cpu"]


@dataclass(frozen=True)
class Reference:
    """Plain runs of the whole program, seconds.

    `wall`, `cpu`: of each run, under the environment that every other run shares; ET_ref comes from them.
    `early_wall`, `early_cpu`: the same of runs made right before the timing run, whose cost they show.
    `plain_environment`: one run under the caller's own environment, wall and CPU. `clock` says which of the two is
    the program's time. Of the wall time of the early runs the program slept `blocked_share`, and waited for a processor
    `waited_share`.
    """

    wall: tuple[float, ...] = field(metadata=many(TIME, 1))
    cpu: tuple[float, ...] = field(metadata=many(TIME, 1))
    blocked_share: float = field(metadata=SHARE)
    plain_environment: tuple[float, float] = field(metadata=many(TIME, 2, 2))
    clock: Clock = field(metadata=one_of("wall", "cpu"))
    early_wall: tuple[float, ...] = field(metadata=many(TIME, 1))
    early_cpu: tuple[float, ...] = field(metadata=many(TIME, 1))
    waited_share: float = field(default=0.0, metadata=SHARE)

    @property
    def runs(self) -> tuple[float, ...]:
        """The times that count, by `clock`."""
        return self.cpu if self.clock == "cpu" else self.wall

    @property
    def seconds(self) -> float:
        """ET_ref: the median run."""
        return statistics.median(self.runs)

    @property
    def early_seconds(self) -> float:
        """The median run right before the timing run."""
        return statistics.median(self.early_cpu if self.clock == "cpu" else self.early_wall)

    @property
    def plain_seconds(self) -> float:
        """The run under the caller's own environment, by `clock`."""
        return self.plain_environment[1 if self.clock == "cpu" else 0]

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def flaw(self) -> str:
        if len(self.cpu) != len(self.wall) or len(self.early_cpu) != len(self.early_wall):
            return "not as many cpu times as wall times"
        return ""

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Reference:
        """Inverse of `to_json`. Raises Unsound."""
        return read(Reference, value, "the reference")
