# SPDX-License-Identifier: Apache-2.0
"""See whether a program spends its time in libraries that carry no counters because they choose code by the processor.

In a long call of such a library nothing is counted, and no place can be named. It is the same code in every run on one
machine, and a restored phase goes on with what its memory says was chosen. So the program is traced once more, with
counters in these libraries too.
"""

from __future__ import annotations

from checkpoint.process.maps import chooses_code
from checkpoint.process.tracee import Tracee

_LONG = 5.0
"""Intervals without a count, after which it is looked where the program is."""
_LOOKS, _THERE = 8, 0.4
"""So many looks decide, where this share of them found it in such a library: these call the C library, too."""


class InLibraries(Exception):
    """The program is to be traced with counters in libraries that choose code by the processor."""


class LibraryLooks:
    """Looks at where a traced program is while nothing is counted. `interval` in seconds."""

    def __init__(self, tracee: Tracee, interval: float) -> None:
        self._tracee, self._interval = tracee, interval
        self._looks = self._there = 0
        self._asked = False

    def wanted(self, uncounted: float) -> bool:
        """Whether the program is to be stopped for a look, after `uncounted` seconds of its own without a count."""
        program = self._tracee.program
        self._asked = not program.choosing and program.threads == 1 and uncounted > _LONG * self._interval
        return self._asked

    def look(self) -> None:
        """At a stop, of whatever reason. Raises InLibraries once it is clear."""
        if not self._asked:
            return
        self._asked = False
        at = self._tracee.registers().rip
        self._looks += 1
        self._there += any(
            entry.start <= at < entry.end and chooses_code(entry.path) for entry in self._tracee.mappings()
        )
        if self._looks == _LOOKS:
            if self._there >= _THERE * _LOOKS:
                raise InLibraries
            self._looks = self._there = 0
