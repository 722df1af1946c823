# SPDX-License-Identifier: Apache-2.0
"""Refuse, while a program is traced, what it would still hold at every phase: sockets to elsewhere, shared memory.

A later stage would find it too, after minutes. What is open for a while only is none of this: a phase where it is
closed can stand for the others.
"""

from __future__ import annotations

from checkpoint.process.descriptors import outside, refusal

LASTING_SECONDS = 8.0
"""What a program holds at every look for so long, it holds while it computes."""

_OFTEN, _SELDOM = 0.1, 0.5
_OFTEN_UNTIL = 2.0
_FEWEST_LOOKS = 3
_START_SHARE = 0.1
"""What has been there since this share of a shorter run, and was there at its end, was there at every phase."""

_PASSING = "a pipe ("
"""Its other end is a child's, which may end before the computation begins."""


class OutsideLooks:
    """What the program called `name`, which began at `began` (time.monotonic), holds and no probe can."""

    def __init__(self, name: str, began: float) -> None:
        self._name, self._began = name, began
        self._next = self._last = began
        self._since: dict[str, float] = {}
        self._looks = 0

    def look(self, pid: int, now: float) -> None:
        """Look, if it is time for that. Raises ProgramUnsupported for what lasts."""
        if now < self._next:
            return
        self._next = now + (_OFTEN if now - self._began < _OFTEN_UNTIL else _SELDOM)
        self._last = now
        self._looks += 1
        found = [fault for fault in outside(pid) if not fault.startswith(_PASSING)]
        self._since = {fault: self._since.get(fault, now) for fault in found}
        self._refuse(now - LASTING_SECONDS)

    def end(self) -> None:
        """The run is over. Raises ProgramUnsupported for what was held from its beginning to its end."""
        if self._looks >= _FEWEST_LOOKS:
            self._refuse(self._began + _START_SHARE * (self._last - self._began))

    def _refuse(self, since: float) -> None:
        lasting = [fault for fault, first in self._since.items() if first <= since]
        if lasting:
            raise refusal(self._name, lasting, "while it runs")
