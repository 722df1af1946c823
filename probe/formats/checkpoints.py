# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of each phase, as the stages capture, reduce and flatten it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from probe.formats.checked import (
    ADDRESS,
    COUNT,
    FLAG,
    NAME_BELOW,
    NUMBER,
    PATH,
    SECONDS,
    TEXT,
    by_name,
    many,
    optional,
    read,
    record,
)
from probe.formats.manifest import WarmupTrial

_PAIRS = many(many(ADDRESS, 2, 2))


@dataclass(frozen=True)
class ReducedPhase:
    """A phase's checkpoint as it will be shipped.

    `folder` below the work folder; `raw_bytes` and `raw_pages` of the checkpoint as it was captured; `kept_pages` of it
    in `folder`; `touched` counts pages touched; `whole` says why nothing was taken out ("" if something was);
    `in_groups`: the kernel showed neighbours of touched pages with them.
    """

    phase: int = field(metadata=NUMBER)
    folder: str = field(metadata=NAME_BELOW)
    raw_bytes: int = field(metadata=COUNT)
    raw_pages: int = field(metadata=COUNT)
    kept_pages: int = field(metadata=COUNT)
    touched: int = field(metadata=COUNT)
    whole: str = field(metadata=TEXT)
    in_groups: bool = field(default=False, metadata=FLAG)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ReducedPhase:
        """Inverse of `to_json`. Raises Unsound, as all here do."""
        return read(ReducedPhase, value)


@dataclass(frozen=True)
class CapturedPhase:
    """One checkpoint of interval `interval`: its folder, the process number inside, and the addresses of the three
    event records. `written`: copies of the files open for writing, by their paths, below the work folder. `huge`:
    address ranges that hold huge pages. `instead`: what the program held at the interval first chosen, and no probe
    can; "" where this is that one. `reduced`: what was made of it at once, of which `folder` is then the folder too.
    `copying`: seconds for which the program stood still until state and pages were copied; `standing`: until it could
    go on, which includes reducing it; 0.0 where that is not known."""

    phase: int = field(metadata=NUMBER)
    interval: int = field(metadata=NUMBER)
    folder: str = field(metadata=NAME_BELOW)
    pid: int = field(metadata=NUMBER)
    warmup: int = field(metadata=NUMBER)
    warm_event: int = field(metadata=ADDRESS)
    start_event: int = field(metadata=ADDRESS)
    end_event: int = field(metadata=ADDRESS)
    written: dict[str, str] = field(metadata=by_name(PATH, NAME_BELOW))
    huge: tuple[tuple[int, int], ...] = field(default=(), metadata=_PAIRS)
    instead: str = field(default="", metadata=TEXT)
    reduced: ReducedPhase | None = field(default=None, metadata=optional(record(ReducedPhase)))
    copying: float = field(default=0.0, metadata=SECONDS)
    standing: float = field(default=0.0, metadata=SECONDS)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> CapturedPhase:
        return read(CapturedPhase, value)


@dataclass(frozen=True)
class EarlyCheckpoints:
    """Checkpoints of intervals from which phases are chosen; `together`: how many traced intervals are one there. The
    number of each in place of a phase's names its files."""

    together: int = field(metadata=NUMBER)
    captured: tuple[CapturedPhase, ...] = field(metadata=many(record(CapturedPhase)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EarlyCheckpoints:
        return read(EarlyCheckpoints, value)


@dataclass(frozen=True)
class FlatPhase:
    """What the stage found out about a phase. `refused`: why only CRIU can restore it ("" if that is not so);
    `opened`: files that it opens by their paths while it runs; `calls`: (number, times) of its system calls, `seen`:
    (address, times) of its code (checkpoint.restore.recorded_calls); `all_calls`: whether no call is
    missing in them."""

    phase: int = field(metadata=NUMBER)
    refused: str = field(metadata=TEXT)
    opened: tuple[str, ...] = field(default=(), metadata=many(TEXT))
    calls: tuple[tuple[int, int], ...] = field(default=(), metadata=_PAIRS)
    seen: tuple[tuple[int, int], ...] = field(default=(), metadata=_PAIRS)
    all_calls: bool = field(default=False, metadata=FLAG)

    @property
    def calls_made(self) -> int:
        """How many system calls it makes, at least; -1 if they could not be watched."""
        return -1 if self.refused else sum(times for _, times in self.calls)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FlatPhase:
        return read(FlatPhase, value)


@dataclass(frozen=True)
class WarmupChoice:
    """The warm-up taken, in intervals; what each length gave, shortest first; which phases were tried; and why the
    choice is doubtful ("" if it is not)."""

    chosen: int = field(metadata=NUMBER)
    trials: tuple[WarmupTrial, ...] = field(metadata=many(record(WarmupTrial)))
    phases: tuple[int, ...] = field(default=(), metadata=many(NUMBER))
    doubt: str = field(default="", metadata=TEXT)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> WarmupChoice:
        return read(WarmupChoice, value)
