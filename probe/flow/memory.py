# SPDX-License-Identifier: Apache-2.0
"""The pages of a phase, which of them hold numbers, and patterns in their place."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from checkpoint.errors import StorageError
from checkpoint.flat.image import REPEATED, FlatImage, Run
from checkpoint.flow.classes import COLUMNS, FILLED, NUMBERS, OF_FLOATS, NumberClasses, classes_in, look
from checkpoint.flow.classes import FLOATS as FLOAT_WORDS
from checkpoint.flow.flow import Numbers, Words
from checkpoint.linux import PAGE_SIZE

Modes = npt.NDArray[np.uint8]
KEPT, WHOLE, BY_WORD = 0, 1, 2
"""What becomes of a page: nothing, all of it is replaced, the words are replaced that look like numbers."""

DOUBLES, FLOATS = "doubles", "floats"
PATTERNS = (DOUBLES, FLOATS)
"""What numbers are replaced by: doubles in [1, 2), which are two floats in [1, 2) as well, for pages that hold both; or
pairs of floats in [1, 2)."""

_WORDS = PAGE_SIZE // 8
_AT_ONCE = 2048
_LOOKED_AT_ONCE = 64
"""Pages: so few are still in the cache when they are looked at."""
_LEAST_REPEATED = 16
"""Neighbouring pages with one pattern from which on the image holds it once: each run of them takes 16 bytes."""
_WRITABLE, _EXECUTABLE = 2, 4
_MOSTLY = 0.9
_MOST_SPECIAL = 0.01
"""Share of NaN, infinity and denormal numbers in a page from which on it is kept: processors treat them differently."""


def _mixed(count: int) -> Words:
    """As many words that look random (splitmix64), the same in every probe."""
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Words = x ^ (x >> np.uint64(31))
        return mixed


PAGE_OF = {
    DOUBLES: np.uint64(0x3FF000003F800000) | (_mixed(_WORDS) & np.uint64(0x000FFFFF007FFFFF)),
    FLOATS: np.uint64(0x3F8000003F800000) | (_mixed(_WORDS) & np.uint64(0x007FFFFF007FFFFF)),
}
"""One page of each pattern: a probe holds it once, however many pages it stands for."""


@lru_cache(maxsize=4)
def _pages_of(page: bytes) -> Words:
    """As many such pages as are written at once."""
    return np.tile(np.frombuffer(page, dtype=np.uint64), (_AT_ONCE, 1))


def are_numbers(words: Words) -> npt.NDArray[np.bool_]:
    """Words that look like a double of an ordinary size, 2^-250 to 2^250, or like two floats of 2^-60 to 2^60: no
    pointers, no small integers, no zeros. As in checkpoint/flow/numbers.c."""
    exponent = (words >> np.uint64(52)) & np.uint64(0x7FF)
    ordinary = np.ones(words.shape, dtype=np.bool_)
    for shift in (23, 55):
        half = (words >> np.uint64(shift)) & np.uint64(0xFF)
        ordinary &= (half > 67) & (half < 187)
    numbers: npt.NDArray[np.bool_] = ordinary | ((exponent > 773) & (exponent < 1273))
    return numbers


@dataclass(frozen=True)
class Known:
    """What became of the pages of several phases, the last of them first: addresses in order, (K,), and modes, (K,)."""

    addresses: Words
    modes: Modes


class PhaseMemory:
    """The pages image of a flattened phase, N pages: where they lie, which may be replaced, what they look like.

    addresses   of the pages, (N,)
    mapping     position of each page's mapping in the flat image, (N,)
    may         pages that may be replaced at all: written by the program, neither code, stack nor markers, not zero
    numbers     share of the words other than zero that look like numbers, (N,)
    single      pages that look like floats rather than doubles, (N,)
    of_floats   likewise, where zeros and special numbers may be among them: both halves of words are numbers, (N,)
    filled      words other than zero, (N,)
    looked      what kinds of words they hold (checkpoint/flow/classes.py, look), (N, 8)
    """

    def __init__(self, flat: FlatImage, pages: Path) -> None:
        if any(run.address & REPEATED for run in flat.runs):
            raise ValueError(f"{pages} holds a page for several of its phase")
        self.flat = flat
        starts = [np.arange(r.address, r.address + r.pages * PAGE_SIZE, PAGE_SIZE, dtype=np.uint64) for r in flat.runs]
        self.addresses = np.concatenate(starts) if starts else np.zeros(0, dtype=np.uint64)
        self._file = pages
        self.mapping = np.full(len(self.addresses), -1, dtype=np.int64)
        self.may = np.zeros(len(self.addresses), dtype=np.bool_)
        for number, m in enumerate(flat.mappings):
            inside = (self.addresses >= m.start) & (self.addresses < m.end)
            self.mapping[inside] = number
            ours = any(m.start <= page < m.end for page in flat.stamps)
            stack = m.start <= flat.header.registers.sp < m.end
            self.may[inside] = bool(m.prot & _WRITABLE) and not m.prot & _EXECUTABLE and not ours and not stack
        for address, data in flat.patches:
            self.may[(self.addresses >= address) & (self.addresses < address + len(data))] = False
        self._look()

    def __len__(self) -> int:
        return len(self.addresses)

    def pages(self) -> Words:
        """The contents, (N, 512), not loaded as a whole."""
        if not len(self):
            return np.zeros((0, _WORDS), dtype=np.uint64)
        return np.memmap(self._file, dtype=np.uint64, mode="r", shape=(len(self), _WORDS))

    def _look(self) -> None:
        self.looked = np.zeros((len(self), COLUMNS), dtype=np.int64)
        # One buffer for all of it: to map the file costs a fault for each of its pages.
        buffer = np.empty((min(_LOOKED_AT_ONCE, len(self)), _WORDS), dtype=np.uint64)
        with self._file.open("rb", buffering=0) as file:
            for first in range(0, len(self), _LOOKED_AT_ONCE):
                part = buffer[: len(self) - first]
                if file.readinto(part.data) != part.nbytes:
                    raise StorageError(f"{self._file} is shorter than its phase's memory")
                self.looked[first : first + len(part)] = look(part)
        self.filled = self.looked[:, FILLED]
        filled = np.maximum(self.filled, 1)
        self.single = self.looked[:, FLOAT_WORDS] / filled > _MOSTLY
        self.numbers = self.looked[:, NUMBERS] / filled
        special = self.looked[:, FLOAT_WORDS + 1 : FLOAT_WORDS + 4].sum(axis=1)
        self.of_floats = self.looked[:, OF_FLOATS] != 0
        self.may &= (self.filled > 0) & (special <= _MOST_SPECIAL * _WORDS)

    @property
    def mostly_numbers(self) -> npt.NDArray[np.bool_]:
        """Pages that may be replaced, and hold hardly anything but numbers."""
        found: npt.NDArray[np.bool_] = self.may & (self.numbers > _MOSTLY)
        return found

    def replaced(self, rows: slice, modes: Modes, pattern: str) -> Words:
        """The contents of some pages once they are replaced, (len(rows), 512). Not to be written to."""
        mode, single = modes[rows], self.single[rows]
        if (mode == WHOLE).all() and (single == single[:1]).all():
            # Nearly all of an array program's memory: its own contents need not even be read.
            return _pages_of(PAGE_OF[FLOATS if single[:1].any() else pattern].tobytes())[: len(mode)]
        words = np.array(self.pages()[rows])
        for kind, these in ((FLOATS, single), (pattern, ~single)):
            words[(mode == WHOLE) & these] = PAGE_OF[kind]
            by_word = np.flatnonzero((mode == BY_WORD) & these)
            words[by_word] = np.where(are_numbers(words[by_word]), PAGE_OF[kind], words[by_word])
        return words

    def classes(self, modes: Modes) -> NumberClasses:
        """Of the numbers in the pages that are replaced, with their own contents."""
        return classes_in(self.looked[modes != KEPT], _WORDS)

    def classes_replaced(self, modes: Modes, pattern: str) -> NumberClasses:
        """Likewise, once they are replaced."""
        by_word = np.where(modes == BY_WORD, modes, KEPT).astype(np.uint8)
        found = sum(
            (
                classes_in(look(self.replaced(rows, modes, pattern), self.of_floats[rows]), _WORDS)
                for rows in self._stretches(by_word)
            ),
            NumberClasses(),
        )
        for kind, these in ((FLOATS, self.single), (pattern, ~self.single)):
            pages = int(((modes == WHOLE) & these).sum())
            found += classes_in(np.repeat(look(PAGE_OF[kind][np.newaxis]), pages, axis=0), _WORDS)
        return found

    def contents(self, modes: Modes, pattern: str) -> Iterator[tuple[int, memoryview]]:
        """(address, bytes) of all pages that are replaced, neighbours together."""
        for rows in self._stretches(modes):
            yield int(self.addresses[rows.start]), self.replaced(rows, modes, pattern).data.cast("B")

    def spans(self, modes: Modes) -> tuple[Numbers, ...]:
        """The pages that are replaced, and whether they hold floats with the program's own data."""
        found = []
        for rows in self._stretches(modes):
            kinds = self.of_floats[rows]
            starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
            found += [
                Numbers(int(self.addresses[rows.start + first]), (end - first) * PAGE_SIZE, bool(kinds[first]))
                for first, end in itertools.pairwise(starts)
            ]
        return tuple(found)

    def _stretches(self, modes: Modes) -> Iterator[slice]:
        chosen = np.flatnonzero(modes)
        if not len(chosen):
            return
        breaks = np.flatnonzero((np.diff(chosen) != 1) | (np.diff(self.addresses[chosen]) != PAGE_SIZE)) + 1
        for part in np.split(chosen, breaks):
            first, end = int(part[0]), int(part[-1]) + 1
            for start in range(first, end, _AT_ONCE):
                yield slice(start, min(start + _AT_ONCE, end))

    def replaced_words(self, modes: Modes) -> npt.NDArray[np.int64]:
        """How many words other than zero are replaced in each page, (N,)."""
        found = np.where(modes == WHOLE, self.filled, 0)
        pages = self.pages()
        for row in np.flatnonzero(modes == BY_WORD).tolist():
            found[row] = int(are_numbers(np.asarray(pages[row])).sum())
        return found

    def write(self, target: Path, modes: Modes, pattern: str, *, repeated: bool) -> list[Run]:
        """Make the pages image with these pages replaced; its runs. `repeated`: many neighbours with one pattern are
        there once."""
        parts = list(self._parts(modes)) if repeated else [(slice(0, len(self)), False)]
        with target.open("wb") as out:
            # Several times as fast as to let the file grow. Where it cannot be done, writing is slower, or says why.
            with contextlib.suppress(OSError):
                os.posix_fallocate(
                    out.fileno(), 0, sum(1 if once else p.stop - p.start for p, once in parts) * PAGE_SIZE
                )
            for part, once in parts:
                for first in range(part.start, part.start + 1 if once else part.stop, _AT_ONCE):
                    rows = slice(first, min(first + _AT_ONCE, part.start + 1 if once else part.stop))
                    out.write(self.replaced(rows, modes, pattern).data.cast("B"))
        return [run for part, once in parts for run in self._runs(part, once)]

    def _parts(self, modes: Modes) -> Iterator[tuple[slice, bool]]:
        """All rows, in parts; whether one has neighbouring pages with one pattern, which is held once."""
        kind = np.where(modes == WHOLE, 1 + self.single, 0)
        breaks = np.flatnonzero((np.diff(kind) != 0) | (np.diff(self.addresses) != PAGE_SIZE)) + 1
        edges = [0, *breaks.tolist(), len(self)]
        done = 0
        for first, end in itertools.pairwise(edges):
            if kind[first:end].any() and end - first >= _LEAST_REPEATED:
                if done < first:
                    yield slice(done, first), False
                yield slice(first, end), True
                done = end
        if done < len(self):
            yield slice(done, len(self)), False

    def _runs(self, part: slice, once: bool) -> list[Run]:
        addresses = self.addresses[part]
        edges = [0, *(np.flatnonzero(np.diff(addresses) != PAGE_SIZE) + 1).tolist(), len(addresses)]
        flag = REPEATED if once else 0
        return [Run(int(addresses[first]) | flag, end - first) for first, end in itertools.pairwise(edges)]

    def carried_over(self, known: Known) -> tuple[Modes, npt.NDArray[np.bool_]]:
        """The modes of other phases for the pages of this one at the same addresses; which of them were there, (N,)."""
        found, there = np.zeros(len(self), dtype=np.uint8), np.zeros(len(self), dtype=np.bool_)
        if len(known.addresses):
            at = np.minimum(np.searchsorted(known.addresses, self.addresses), len(known.addresses) - 1)
            there = known.addresses[at] == self.addresses
            found[there] = known.modes[at[there]]
        found[~self.may] = KEPT
        return found, there

    def known(self, modes: Modes, before: Known | None = None) -> Known:
        """These modes, and where this phase had no page those known before."""
        if before is None:
            return Known(self.addresses, modes)
        others = ~np.isin(before.addresses, self.addresses)
        addresses = np.concatenate([self.addresses, before.addresses[others]])
        order = np.argsort(addresses)
        return Known(addresses[order], np.concatenate([modes, before.modes[others]])[order])
