# SPDX-License-Identifier: Apache-2.0
"""Classes of numbers that processors treat differently: NaN, infinity, denormal, zero."""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from checkpoint import compiled
from checkpoint.linux import PAGE_SIZE

_LARGEST = 1e-3
"""Share of the numbers by which a class may differ."""

_PAGE_WORDS = PAGE_SIZE // 8


@dataclass(frozen=True)
class NumberClasses:
    """How many 64-bit words were looked at, and what they are, read as doubles or as pairs of floats
    (numbers.c)."""

    words: int = 0
    nan: int = 0
    infinite: int = 0
    denormal: int = 0
    zero: int = 0

    def __add__(self, other: NumberClasses) -> NumberClasses:
        mine, theirs = asdict(self), asdict(other)
        return NumberClasses(**{name: mine[name] + theirs[name] for name in mine})

    def differing(self, other: NumberClasses) -> str:
        """The first class of which there is clearly more on one side, with both numbers; "" where there is none."""
        for name, title in (("nan", "NaN"), ("infinite", "infinity"), ("denormal", "denormal")):
            mine, theirs = getattr(self, name), getattr(other, name)
            if abs(mine - theirs) > _LARGEST * max(self.words, other.words, 1):
                return f"{mine} of {self.words} numbers are {title}, {theirs} with the program's own data"
        return ""


FILLED, NUMBERS, FLOATS, OF_FLOATS = 0, 1, 2, 7
"""Columns of `look`: words other than zero, those that look like a double or two floats of an ordinary size, like two
floats of about one size; 1 for a page of floats."""
COLUMNS = 8

_CLASSES = slice(3, 7)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiled.NUMBERS.made()))
    library.look.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    library.look.restype = None
    return library


def prepare() -> None:
    """Compile and load what looks. Raises ToolMissing, StorageError."""
    _library()


def look(pages: npt.NDArray[np.uint64], floats: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
    """What kinds of words pages hold, (N, 512) to (N, 8): FILLED, NUMBERS and FLOATS, then NaN, infinite, denormal,
    zero, as doubles or as floats, and OF_FLOATS (numbers.c). `floats` says which pages are of floats, (N,)."""
    pages = np.ascontiguousarray(pages)
    found = np.zeros((len(pages), COLUMNS), dtype=np.int64)
    said = None if floats is None else np.ascontiguousarray(floats, dtype=np.uint8)
    _library().look(pages.ctypes.data, *pages.shape, None if said is None else said.ctypes.data, found.ctypes.data)
    return found


def classes_in(looked: npt.NDArray[np.int64], words: int) -> NumberClasses:
    """Classes of the pages that `look` looked at, of so many words each."""
    return NumberClasses(len(looked) * words, *looked[:, _CLASSES].sum(axis=0).tolist())


def classes_of(words: npt.NDArray[np.uint64], floats: bool | None = None) -> NumberClasses:
    """Classes of 64-bit words, whole pages of them where they are so many. `floats`: whether they are pages of
    floats."""
    page = _PAGE_WORDS if words.size % _PAGE_WORDS == 0 else words.size
    pages = words.reshape(-1, page)
    said = None if floats is None else np.full(len(pages), floats)
    return classes_in(look(pages, said), page)
