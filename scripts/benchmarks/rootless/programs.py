# SPDX-License-Identifier: Apache-2.0
"""Programs that `scripts/bench rootless` builds: twenty of seconds, two large ones, and some of a chosen length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.arrays.programs import KERNELS
from benchmarks.programs import KNOWN, OWN, SHORT, Benchmark

HALF_MINUTE = 30.0

_OF_SECONDS = ("python3", "sqlite3", "minisat", "cc1")
_KERNELS = ("triad", "stencil", "lu", "fft", "histogram", "spmv", "transpose", "gather")

CAPTURED = {b.name: b for b in (*SHORT, *(KERNELS[n] for n in _KERNELS), *(KNOWN[n] for n in _OF_SECONDS))}
"""Whose touched sets are tried, by name."""

COMPARED = (
    "sorter-short", "gzip-short", "bzip2-short", "perl-short", "clustalw-short", "hmmsearch-short", "lu", "histogram",
    "python3", "sqlite3",
)  # fmt: skip
"""Of these also state, pages and region times are compared with CRIU's."""

MEMORY = {
    f"memory-{size}": Benchmark(
        f"memory-{size}", (str(OWN / "bigheap"), str(size), "12"), f"a table of {size} MB, of which little is used"
    )
    for size in (250, 1000)
}
"""For the stop, which grows with memory, and for the work folder."""


@dataclass(frozen=True)
class Scaled:
    """A program of data/programs that takes `seconds`: its argument says how much of its work it does. Two runs with
    the arguments `few` tell how long one more takes."""

    name: str
    file: str
    seconds: float
    few: tuple[int, int] = (2, 5)

    def benchmark(self, argument: int) -> Benchmark:
        return Benchmark(self.name, (str(OWN / self.file), str(argument)), f"{self.seconds:.0f} s of {self.file}")


LONG = "long"


def whole(minutes: float) -> dict[str, Scaled]:
    """Programs whose whole builds are timed, by name; `minutes`: of the long one."""
    return {
        "sorter-30s": Scaled("sorter-30s", "sorter", HALF_MINUTE),
        "phases-30s": Scaled("phases-30s", "phases", HALF_MINUTE),
        LONG: Scaled(LONG, "phases", 60 * minutes),
    }


NAMES = (*CAPTURED, *MEMORY, *whole(1.0))
"""All that can be named on the command line, in the order in which they are measured."""


def packages(names: Sequence[str]) -> list[str]:
    """Distribution packages that these programs and their inputs need."""
    found = {CAPTURED[name].package for name in names if name in CAPTURED} - {""}
    # The inputs are made all at once.
    return sorted(found | {"hmmer", "gcc"}) if found else []
