# SPDX-License-Identifier: Apache-2.0
"""Memory that several mappings and descriptors of a process lead to: anonymous shared memory, memfds, deleted files
that are in memory alone. Filled by checkpoint/capture/shared_memory.py. Python 3.8, standard library.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER_SENT = {5, 9, 19}
"""SIGTRAP, which tracers need, SIGKILL and SIGSTOP: the restorer sends none of them."""


@dataclass(frozen=True)
class SharedMemory:
    """One piece of such memory. `number`: `Vma.file_id` of the mappings of it.

    `name` as the kernel says it; `size` in bytes; `mode`: permissions; `seals` as for F_GET_SEALS; `pieces`: (offset in
    bytes, pages) of what holds something, in the order of the pages file. `files`: ids of the open files that lead to
    it. `refused`: why a probe cannot hold it, "" if it can.
    """

    number: int
    name: str
    size: int = 0
    mode: int = 0
    seals: int = 0
    pieces: tuple[tuple[int, int], ...] = ()
    files: tuple[int, ...] = ()
    refused: str = ""

    @property
    def pages(self) -> int:
        """Pages held."""
        return sum(pages for _, pages in self.pieces)


@dataclass(frozen=True)
class QueuedSignal:
    """A signal that waits to be delivered; `to_thread`: to the first thread alone. `information`: siginfo_t."""

    to_thread: bool
    information: bytes

    @property
    def number(self) -> int:
        return int.from_bytes(self.information[:4], "little")
