# SPDX-License-Identifier: Apache-2.0
"""Telling the user how far a long command is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from probe.terminal import console, one_line

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[float], None]
"""Called with the share of the stage that is done, 0 to 1."""


class Display(Protocol):
    """Where stages are shown."""

    @contextmanager
    def stage(self, name: str) -> Iterator[Report]:
        """Show one stage while the block runs."""
        ...

    def note(self, text: str) -> None:
        """One line for the user that is not about how far things are."""
        ...


class Silent:
    """Shows nothing: the Python API's default, and --quiet."""

    @contextmanager
    def stage(self, name: str) -> Iterator[Report]:
        yield lambda share: None

    def note(self, text: str) -> None:
        pass


class Lines:
    """One line when a stage begins and one when it ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    @contextmanager
    def stage(self, name: str) -> Iterator[Report]:
        print(f"{name} ...", file=self._stream, flush=True)
        begun = time.monotonic()
        yield lambda share: None
        print(f"{name}: done in {time.monotonic() - begun:.1f} s", file=self._stream, flush=True)

    def note(self, text: str) -> None:
        print(one_line(text), file=self._stream, flush=True)


class Bars:
    """A bar with the time left for each stage, on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, name: str) -> Iterator[Report]:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=32),
            TaskProgressColumn("{task.percentage:>3.0f} %", text_format_no_percentage=""),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            # Of a stage that does not say how far it is there is no time left to show.
            task = progress.add_task(name, total=None)
            yield lambda share: progress.update(task, total=1.0, completed=min(share, 0.999))
            progress.update(task, total=1.0, completed=1.0)

    def note(self, text: str) -> None:
        self._console.print(one_line(text))


def display_for(quiet: bool) -> Display:
    """The display that fits standard error."""
    if quiet:
        return Silent()
    shown = console(err=True)
    return Bars(shown) if shown.is_terminal and not shown.is_dumb_terminal else Lines()
