# SPDX-License-Identifier: Apache-2.0
"""Showing how far each node is: a bar for each on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from probe.candidates.agent_client import SilentNode, Watcher
from probe.terminal import console, one_line


class LinesNode:
    """A line for what the node does, and for every quarter of sending and measuring."""

    def __init__(self, name: str, stream: TextIO, one_at_a_time: threading.Lock) -> None:
        self._name, self._stream, self._lock = name, stream, one_at_a_time
        self._said = ""

    def say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            with self._lock:
                print(one_line(f"{self._name}: {text}"), file=self._stream, flush=True)

    def sent(self, done: int, whole: int) -> None:
        self._quarters("sent", done, whole)

    def measured(self, done: int, whole: int) -> None:
        self._quarters("measured", done, whole)

    def _quarters(self, what: str, done: int, whole: int) -> None:
        if whole:
            self.say(f"{what} {4 * done // whole * 25} %")


class BarNode:
    """One bar among those of all nodes."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(escape(name), total=1.0, doing="connecting")

    def say(self, text: str) -> None:
        self._progress.update(self._task, doing=escape(text[:60]))

    def sent(self, done: int, whole: int) -> None:
        self._progress.update(self._task, completed=done / max(1, whole), doing="sending")

    def measured(self, done: int, whole: int) -> None:
        self._progress.update(self._task, completed=done / max(1, whole), doing="measuring")


@contextmanager
def watching(quiet: bool) -> Iterator[Callable[[str], Watcher]]:
    """What makes a Watcher for each node, as fits standard error, while the block runs."""
    shown = console(err=True)
    if quiet:
        yield lambda name: SilentNode()
    elif shown.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[doing]}"))
        with Progress(*columns, TimeElapsedColumn(), console=shown) as progress:
            yield lambda name: BarNode(name, progress)
    else:
        lock = threading.Lock()
        yield lambda name: LinesNode(name, sys.stderr, lock)
