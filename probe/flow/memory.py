# SPDX-License-Identifier: Apache-2.0
"""The pages of a phase, which of them hold numbers, and patterns in their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from checkpoint.flat.image import FlatImage
from checkpoint.flow.classes import classes_of
from checkpoint.flow.flow import Words
from checkpoint.linux import PAGE_SIZE

Modes = npt.NDArray[np.uint8]
KEPT, WHOLE, BY_WORD = 0, 1, 2
"""What becomes of a page: nothing, all of it is replaced, the words are replaced that look like numbers."""

DOUBLES, FLOATS = "doubles", "floats"
PATTERNS = (DOUBLES, FLOATS)
"""What numbers are replaced by: doubles in [1, 2), or pairs of floats in [1, 2)."""

_WORDS = PAGE_SIZE // 8
_AT_ONCE = 2048
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
    DOUBLES: np.uint64(0x3FF0000000000000) | (_mixed(_WORDS) >> np.uint64(12)),
    FLOATS: np.uint64(0x3F8000003F800000) | (_mixed(_WORDS) & np.uint64(0x007FFFFF007FFFFF)),
}
"""One page of each pattern: a probe holds it once, however many pages it stands for."""


def are_doubles(words: Words) -> npt.NDArray[np.bool_]:
    """Words that look like doubles of an ordinary size, 2^-250 to 2^250: no pointers, no small integers, no zeros."""
    exponent = (words >> np.uint64(52)) & np.uint64(0x7FF)
    ordinary: npt.NDArray[np.bool_] = (exponent > 773) & (exponent < 1273)
    return ordinary


def are_floats(words: Words) -> npt.NDArray[np.bool_]:
    """Words whose halves both look like floats of an ordinary size, 2^-60 to 2^60."""
    ordinary = np.ones(words.shape, dtype=np.bool_)
    for shift in (23, 55):
        exponent = (words >> np.uint64(shift)) & np.uint64(0xFF)
        ordinary &= (exponent > 67) & (exponent < 187)
    return ordinary


class PhaseMemory:
    """The pages image of a flattened phase, N pages: where they lie, which may be replaced, what they look like.

    addresses   of the pages, (N,)
    mapping     position of each page's mapping in the flat image, (N,)
    may         pages that may be replaced at all: written by the program, neither code, stack nor markers, not zero
    numbers     share of the words other than zero that look like numbers, (N,)
    single      pages that look like floats rather than doubles, (N,)
    """

    def __init__(self, flat: FlatImage, pages: Path) -> None:
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
        self.numbers = np.zeros(len(self.addresses))
        self.single = np.zeros(len(self.addresses), dtype=np.bool_)
        self.filled = np.zeros(len(self.addresses), dtype=np.int64)
        self._look()

    def __len__(self) -> int:
        return len(self.addresses)

    def pages(self) -> Words:
        """The contents, (N, 512), not loaded as a whole."""
        if not len(self):
            return np.zeros((0, _WORDS), dtype=np.uint64)
        return np.memmap(self._file, dtype=np.uint64, mode="r", shape=(len(self), _WORDS))

    def _look(self) -> None:
        pages = self.pages()
        for first in range(0, len(self), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            words = np.asarray(pages[rows])
            self.filled[rows] = (words != 0).sum(axis=1)
            filled = np.maximum(self.filled[rows], 1)
            floats = are_floats(words).sum(axis=1) / filled
            doubles = are_doubles(words).sum(axis=1) / filled
            self.single[rows] = floats > _MOSTLY
            self.numbers[rows] = np.maximum(doubles, floats)
            self.may[rows] &= self.filled[rows] > 0
            for row in np.flatnonzero(self.may[rows] & (self.numbers[rows] < 1.0)).tolist():
                found = classes_of(words[row])
                if found.nan + found.infinite + found.denormal > _MOST_SPECIAL * _WORDS:
                    self.may[first + row] = False

    @property
    def mostly_numbers(self) -> npt.NDArray[np.bool_]:
        """Pages that may be replaced, and hold hardly anything but numbers."""
        return self.may & (self.numbers > _MOSTLY)

    def replaced(self, rows: slice, modes: Modes, pattern: str) -> Words:
        """The contents of some pages once they are replaced, (len(rows), 512)."""
        words = np.array(self.pages()[rows])
        for row, mode in enumerate(modes[rows].tolist()):
            if mode == KEPT:
                continue
            single = bool(self.single[rows][row])
            page = PAGE_OF[FLOATS if single else pattern]
            old = words[row]
            words[row] = page if mode == WHOLE else np.where(are_floats(old) if single else are_doubles(old), page, old)
        return words

    def contents(self, modes: Modes, pattern: str) -> Iterator[tuple[int, memoryview]]:
        """(address, bytes) of all pages that are replaced, neighbours together."""
        for rows in self._stretches(modes):
            yield int(self.addresses[rows.start]), self.replaced(rows, modes, pattern).data.cast("B")

    def spans(self, modes: Modes) -> tuple[tuple[int, int], ...]:
        """(address, bytes) of the pages that are replaced."""
        return tuple(
            (int(self.addresses[rows.start]), (rows.stop - rows.start) * PAGE_SIZE) for rows in self._stretches(modes)
        )

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
            old = np.asarray(pages[row])
            found[row] = int((are_floats(old) if self.single[row] else are_doubles(old)).sum())
        return found

    def write(self, target: Path, modes: Modes, pattern: str) -> None:
        """The pages image with these pages replaced."""
        with target.open("wb") as out:
            for first in range(0, len(self), _AT_ONCE):
                rows = slice(first, min(first + _AT_ONCE, len(self)))
                out.write(self.replaced(rows, modes, pattern).tobytes())

    def carried_over(self, before: PhaseMemory, modes: Modes) -> Modes:
        """The modes of another phase for the pages of this one at the same addresses."""
        found = np.zeros(len(self), dtype=np.uint8)
        if len(before):
            at = np.minimum(np.searchsorted(before.addresses, self.addresses), len(before) - 1)
            same = before.addresses[at] == self.addresses
            found[same] = modes[at[same]]
        found[~self.may] = KEPT
        return found
