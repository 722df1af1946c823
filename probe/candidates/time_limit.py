# SPDX-License-Identifier: Apache-2.0
"""Bound the time of one node: known beforehand from the probe's own times, whatever the node does.

A node is connected to, sent what it lacks, and measures: all of it within one limit (docs/candidates.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from probe.candidates.agent_client import Answer, Orders
from probe.formats.manifest import Manifest
from probe.formats.phase_record import PhaseRecord

START_SECONDS = 60.0
"""Reaching the node, starting the agent there, checking its files."""

SLOWER = 10.0
"""A node may be so many times as slow as the reference node, disturbed repeats included."""

_RESTORE_SECONDS, _PAGE_SECONDS = 0.1, 4096 / 1e9
"""Restoring a phase on the reference node, about, and each of its pages."""

_LEAST_BYTES_PER_SECOND = 125_000
"""The slowest link that a probe is sent over: 1 Mbit/s."""

_LOOK_SECONDS = 0.25


def run_seconds(phases: Sequence[PhaseRecord], repeats: int) -> float:
    """What measuring these phases takes on the reference node, about."""
    return repeats * sum(
        p.expected_seconds + _RESTORE_SECONDS + _PAGE_SECONDS * p.checkpoint.kept_pages for p in phases
    )


class TimeLimit:
    """The seconds that one node has from now on, over all connections to it.

    `orders.limit_seconds` for all of it where the user gave that. Otherwise the start, ten times what the
    phases take on the reference node, a second for every 125 kB of the probe that the node has really taken, and what
    further repeats may take. While another measurement has the node it may wait besides, as long as it was told to.
    """

    def __init__(self, manifest: Manifest, size: int, orders: Orders, answer: Answer, further: float = 0.0) -> None:
        """`size`: bytes of the probe. `further`: seconds for repeats that come on top of those ordered."""
        self._begun = time.monotonic()
        self._answer, self._size, self._wait = answer, size, orders.lock_seconds
        self._given = orders.limit_seconds
        able = [phase for phase in manifest.phases if phase.can_run]
        self._fixed = START_SECONDS + SLOWER * run_seconds(able, orders.repeats) + further

    @property
    def most(self) -> float:
        """The limit for a node that takes the whole probe and finds no other measurement: what is announced."""
        return self._fixed + self._size / _LEAST_BYTES_PER_SECOND if self._given is None else self._given

    @property
    def left(self) -> float:
        """Seconds left now; below zero where it has passed."""
        allowed = self._given
        if allowed is None:
            allowed = self._fixed + min(self._answer.sent_members, self._size) / _LEAST_BYTES_PER_SECOND
            allowed += self._wait if self._answer.waited else 0.0
        return self._begun + allowed - time.monotonic()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` from another thread when the limit passes while the block runs."""
        done = threading.Event()

        def watch() -> None:
            while (left := self.left) > 0:
                if done.wait(min(left, _LOOK_SECONDS)):
                    return
            end()

        watcher = threading.Thread(target=watch, name="time limit of a node", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
