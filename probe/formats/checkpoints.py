# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of each phase, as the stages capture, reduce and flatten it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from probe.formats.manifest import WarmupTrial


@dataclass(frozen=True)
class CapturedPhase:
    """One checkpoint of interval `interval`: its folder, the process number inside, and the addresses of the three
    event records. `written`: copies of the files open for writing, by their paths, below the work folder. `huge`:
    address ranges that hold huge pages."""

    phase: int
    interval: int
    folder: str
    pid: int
    warmup: int
    warm_event: int
    start_event: int
    end_event: int
    written: dict[str, str]
    huge: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> CapturedPhase:
        return CapturedPhase(**{**value, "huge": tuple((start, end) for start, end in value["huge"])})


@dataclass(frozen=True)
class ReducedPhase:
    """A phase's checkpoint as it will be shipped.

    `folder` below the work folder; `raw_bytes` and `raw_pages` of the checkpoint as CRIU wrote it; `kept_pages` of it
    in `folder`; `touched` counts pages touched; `whole` says why nothing was taken out ("" if something was).
    """

    phase: int
    folder: str
    raw_bytes: int
    raw_pages: int
    kept_pages: int
    touched: int
    whole: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ReducedPhase:
        return ReducedPhase(**value)


@dataclass(frozen=True)
class FlatPhase:
    """What the stage found out about a phase. `refused`: why only CRIU can restore it ("" if that is not so);
    `opened`: files that it opens by their paths while it runs; `calls`: (number, times) of its system calls, `seen`:
    (address, times) of its code (checkpoint.restore.recorded_calls); `all_calls`: whether none is missing in these
    two."""

    phase: int
    refused: str
    opened: tuple[str, ...] = ()
    calls: tuple[tuple[int, int], ...] = ()
    seen: tuple[tuple[int, int], ...] = ()
    all_calls: bool = False

    @property
    def calls_made(self) -> int:
        """How many system calls it makes, at least; -1 if they could not be watched."""
        return -1 if self.refused else sum(times for _, times in self.calls)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FlatPhase:
        pairs = {name: tuple((int(a), int(b)) for a, b in value.get(name, ())) for name in ("calls", "seen")}
        return FlatPhase(
            int(value["phase"]),
            str(value["refused"]),
            tuple(value["opened"]),
            all_calls=bool(value.get("all_calls", False)),
            **pairs,
        )


@dataclass(frozen=True)
class WarmupChoice:
    """The warm-up taken, in intervals; what each length gave, shortest first; which phases were tried; and why the
    choice is doubtful ("" if it is not)."""

    chosen: int
    trials: tuple[WarmupTrial, ...]
    phases: tuple[int, ...] = ()
    doubt: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> WarmupChoice:
        return WarmupChoice(
            int(value["chosen"]),
            tuple(WarmupTrial(**trial) for trial in value["trials"]),
            tuple(value["phases"]),
            str(value["doubt"]),
        )
