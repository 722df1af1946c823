# SPDX-License-Identifier: Apache-2.0
"""Print for people: the one way from text to a terminal, and nothing on it acts there.

Probes, profiles, results, stores and nodes bring text: names, command lines, reasons. It is kept as it came, since a
path must open the file that it names, and JSON says it exactly. Here, where it is shown, whatever would act instead of
showing becomes U+FFFD: control codes and escape sequences, marks that turn the direction of writing, halves of
characters. Nothing else in this program prints (tests/cli/test_terminal_text.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

import click

from checkpoint import strict_json
from probe.foreign_text import acts

if TYPE_CHECKING:
    from rich.console import Console

_INSTEAD = "\ufffd"


def harmless(text: str) -> str:
    """The same text; what would act on a terminal, but for line ends and tabs, is replaced character by character."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_INSTEAD if c not in "\n\t" and acts(c) else c for c in text)


def one_line(text: str) -> str:
    """`harmless`, and on one line: a line end in a name must not make a line that looks like ours."""
    return harmless(text.replace("\n", _INSTEAD).replace("\t", " "))


def say(text: str = "", *, err: bool = False, end: bool = True) -> None:
    """Print text for people to standard output or error; `end`: with a line end."""
    click.echo(harmless(text), err=err, nl=end)


def say_json(value: Any) -> None:
    """Print JSON, exact: control characters are escapes in it."""
    click.echo(strict_json.dumps(value, indent=2))


def console(file: IO[str] | None = None, *, err: bool = False, width: int | None = None) -> Console:
    """A console for tables, bars and long lines: no markup in what is printed, no highlighting."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Harmless(Console):
        """Cleans each piece of text as it becomes what is written: cells, lines, names of bars."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for piece in super().render(renderable, options):
                yield piece if piece.control else Segment(harmless(piece.text), piece.style)

    return Harmless(file=file, stderr=err, width=width, highlight=False, markup=False, emoji=False)


def show_all_characters() -> None:
    """Have what a terminal's encoding lacks shown as escapes: an error in printing would end the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
