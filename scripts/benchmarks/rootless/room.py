# SPDX-License-Identifier: Apache-2.0
"""The most that a folder held on disk while a build worked in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.breadth.bounded import bytes_in

_LOOK_SECONDS = 0.02
"""A phase's whole copy is there for as long as it is reduced: a tenth of a second and more."""


@dataclass
class Peak:
    """Bytes on disk at the fullest moment seen."""

    bytes: int = 0


@contextmanager
def fullest(folder: Path) -> Iterator[Peak]:
    """Look at the folder from time to time while inside; it need not exist yet."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            peak.bytes = max(peak.bytes, bytes_in(folder))

    thread = threading.Thread(target=look, name="room")
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.bytes = max(peak.bytes, bytes_in(folder))
