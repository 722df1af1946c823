# SPDX-License-Identifier: Apache-2.0
"""Search for the pages of a phase that can be replaced without a change of what it executes."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from probe.flow.memory import BY_WORD, KEPT, WHOLE, Modes, PhaseMemory

Judge = Callable[[Modes], bool]
"""Whether the phase executes the same with these pages replaced."""

_SHARE_FOR_OTHERS = 0.5
"""Of the time that is left, for pages that do not look like numbers."""

_LEAST_PART = 256
"""Pages of these are not searched for in parts smaller than this fraction of all."""


@dataclass
class Found:
    """`modes` of the pages; `smaller`: answers that replace less, largest first; `trials` made; whether time ran
    out."""

    modes: Modes
    smaller: list[Modes] = field(default_factory=list)
    trials: int = 0
    out_of_time: bool = False


class _Search:
    def __init__(self, memory: PhaseMemory, judge: Judge, until: float) -> None:
        self._memory, self._judge, self._until = memory, judge, until
        self.found = Found(np.zeros(len(memory), dtype=np.uint8))

    def accept(self, modes: Modes) -> bool:
        """Whether these modes, on top of what was found, change nothing; they are kept then."""
        together = np.where(modes != KEPT, modes, self.found.modes).astype(np.uint8)
        if np.array_equal(together, self.found.modes):
            return True
        self.found.trials += 1
        if self._judge(together):
            self.found.modes = together
            return True
        return False

    def bisect(self, chosen: npt.NDArray[np.bool_], mode: int, *, until: float, least: int = 1) -> None:
        """Replace as many of the chosen pages as can be, the largest groups first."""
        groups = [(-len(rows), int(rows[0]), rows) for rows in self._by_mapping(chosen)]
        everything = np.flatnonzero(chosen)
        if len(groups) > 1:
            groups = [(-len(everything), -1, everything)]
        heapq.heapify(groups)
        while groups:
            if time.monotonic() > until:
                self.found.out_of_time = True
                return
            _, _, rows = heapq.heappop(groups)
            modes = np.zeros(len(self._memory), dtype=np.uint8)
            modes[rows] = mode
            if self.accept(modes):
                continue
            for part in self._parts(rows):
                if len(part) >= least:
                    heapq.heappush(groups, (-len(part), int(part[0]), part))
            if len(rows) == 1 and mode == WHOLE and self._memory.numbers[rows[0]] > 0:
                modes[rows] = BY_WORD
                self.accept(modes)

    def _by_mapping(self, chosen: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
        rows = np.flatnonzero(chosen)
        return [rows[self._memory.mapping[rows] == number] for number in np.unique(self._memory.mapping[rows])]

    def _parts(self, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        chosen = np.zeros(len(self._memory), dtype=np.bool_)
        chosen[rows] = True
        mappings = self._by_mapping(chosen)
        if len(mappings) > 1:
            return mappings
        return [rows[: len(rows) // 2], rows[len(rows) // 2 :]] if len(rows) > 1 else []


def search(memory: PhaseMemory, judge: Judge, *, seconds: float, guess: Modes | None = None) -> Found:
    """As many pages as `seconds` suffice for: those of `guess` first, then those full of numbers, then the words that
    look like numbers in other pages, then the rest."""
    until = time.monotonic() + seconds
    doing = _Search(memory, judge, until)
    if guess is not None and guess.any():
        doing.accept(guess)
    open_to = doing.found.modes == KEPT
    doing.bisect(memory.mostly_numbers & open_to, WHOLE, until=until)
    doing.found.smaller.append(doing.found.modes)
    mixed = memory.may & (memory.numbers > 0) & (doing.found.modes == KEPT)
    doing.bisect(mixed, BY_WORD, until=until)
    doing.found.smaller.append(doing.found.modes)
    others = memory.may & (memory.numbers == 0) & (doing.found.modes == KEPT)
    left = until - time.monotonic()
    doing.bisect(
        others, WHOLE, until=until - _SHARE_FOR_OTHERS * max(0.0, left), least=max(1, int(others.sum()) // _LEAST_PART)
    )
    doing.found.smaller = doing.found.smaller[::-1]
    return doing.found
