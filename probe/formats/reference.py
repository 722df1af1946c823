# SPDX-License-Identifier: Apache-2.0
"""Time that the whole program took on the reference node, by itself: ET_ref. Standard library alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from probe.formats.checked import SHARE, TIME, many, number, one_of, read

Clock = Literal["wall", "cpu"]

_ERROR = number(0.0, 10.0)
"""Relative: more than ten times the value is no error of a time."""


@dataclass(frozen=True)
class Reference:
    """Plain runs of the whole program, seconds.

    `wall`, `cpu`: of each run, under the environment that every other run shares; ET_ref comes from them.
    Where few runs were made the timing run, less what its stamps cost, is the first of them.
    `early_wall`, `early_cpu`: the same of runs made beside the timing run, whose cost they show; empty where few runs
    were made. `plain_environment`: one run under the caller's own environment, wall and CPU; or empty. `clock`
    says which of the two is the program's time. Of the wall time of the early runs, or of the timing run, the program
    slept `blocked_share`, and waited for a processor `waited_share`.
    `voted`: the program's level (probe/formats/timing.py), interval by interval from the runs that `wall` is of, wall
    and CPU seconds; `voted_error`: relative standard errors of both; `voted_noise`: relative standard deviations of
    one undisturbed run. Empty where runs were not stamped.
    """

    wall: tuple[float, ...] = field(metadata=many(TIME, 1))
    cpu: tuple[float, ...] = field(metadata=many(TIME, 1))
    blocked_share: float = field(metadata=SHARE)
    plain_environment: tuple[float, ...] = field(metadata=many(TIME, 0, 2))
    clock: Clock = field(metadata=one_of("wall", "cpu"))
    early_wall: tuple[float, ...] = field(metadata=many(TIME))
    early_cpu: tuple[float, ...] = field(metadata=many(TIME))
    waited_share: float = field(default=0.0, metadata=SHARE)
    voted: tuple[float, ...] = field(default=(), metadata=many(TIME, 0, 2))
    voted_error: tuple[float, ...] = field(default=(), metadata=many(_ERROR, 0, 2))
    voted_noise: tuple[float, ...] = field(default=(), metadata=many(_ERROR, 0, 2))

    @property
    def runs(self) -> tuple[float, ...]:
        """The times that count, by `clock`."""
        return self.cpu if self.clock == "cpu" else self.wall

    @property
    def seconds(self) -> float:
        """ET_ref: the program's level where intervals were voted on, else the median run."""
        return self._by_clock(self.voted) if self.voted else statistics.median(self.runs)

    @property
    def level(self) -> tuple[float, float, float] | None:
        """Where intervals were voted on: ET_ref, its relative standard error, and the noise of one run."""
        if not self.voted:
            return None
        return self._by_clock(self.voted), self._by_clock(self.voted_error), self._by_clock(self.voted_noise)

    def _by_clock(self, wall_and_cpu: tuple[float, ...]) -> float:
        return wall_and_cpu[1 if self.clock == "cpu" else 0]

    @property
    def all_runs(self) -> tuple[float, ...]:
        """The times of the early runs, and of those that ET_ref is of where these are others, by `clock`: minutes lie
        between them."""
        return self._early if self._early == self.runs else (*self._early, *self.runs)

    @property
    def _early(self) -> tuple[float, ...]:
        return self.early_cpu if self.clock == "cpu" else self.early_wall

    @property
    def early_seconds(self) -> float:
        """The median run beside the timing run; ET_ref where there was none."""
        if not self.early_wall:
            return self.seconds
        return statistics.median(self._early)

    @property
    def plain_seconds(self) -> float | None:
        """The run under the caller's own environment, by `clock`; None where none was made."""
        return self._by_clock(self.plain_environment) if self.plain_environment else None

    @property
    def few(self) -> bool:
        """Whether runs that every reader of older probes expects were not made."""
        return not (self.early_wall and self.plain_environment)

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def identity(self) -> dict[str, Any]:
        """`to_json` without what was computed from it: the same in every version of this class."""
        return {k: v for k, v in self.to_json().items() if not k.startswith("voted")}

    def flaw(self) -> str:
        if len(self.cpu) != len(self.wall) or len(self.early_cpu) != len(self.early_wall):
            return "not as many cpu times as wall times"
        if len(self.plain_environment) == 1:
            return "one time in the caller's own environment"
        if len(self.voted) == 1 or not len(self.voted) == len(self.voted_error) == len(self.voted_noise):
            return "a voted time without its error"
        return ""

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Reference:
        """Inverse of `to_json`. Raises Unsound."""
        return read(Reference, value, "the reference")
