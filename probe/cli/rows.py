# SPDX-License-Identifier: Apache-2.0
"""Lists of records, as a table for people, as JSON, or as CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from checkpoint import strict_json
from probe.terminal import console, say, say_json

TABLE, JSON, CSV = "table", "json", "csv"
FORMAT_VERSION: Final = 1
"""Version of the JSON lists; raised when a key changes its meaning or goes away."""

Command = TypeVar("Command", bound=Callable[..., Any])
_JSON_ASKED = f"{__name__}.json"

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md).")


def _ask_json(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    context.meta[_JSON_ASKED] = asked


def json_asked() -> bool:
    """Whether the command that runs was given `JSON_FORMAT`."""
    return bool(click.get_current_context().meta[_JSON_ASKED])


def json_or(context: click.Context, _parameter: click.Parameter, form: str) -> str:
    """Callback of a `--format` beside `JSON_FORMAT`: what was asked for by either of them."""
    return JSON if context.meta[_JSON_ASKED] else form


JSON_FORMAT = click.option(
    "--json", is_flag=True, is_eager=True, expose_value=False, callback=_ask_json, help="The same as --format json."
)


def FORMAT(command: Command) -> Command:
    """Add `--format` and `--json` to a command that prints a list."""
    option = click.option(
        "--format",
        "form",
        type=click.Choice((TABLE, JSON, CSV)),
        default=TABLE,
        show_default=True,
        callback=json_or,
        help="A table for people, JSON (docs/json.md), or CSV with the same keys.",
    )
    return option(JSON_FORMAT(command))


STORE = click.option("--store", "url", metavar="URL", help="A file or a database URL. [default: PROBE_STORE]")


def print_outcome(as_json: bool, text: str, **outcome: Any) -> None:
    """Print what a command did: `text` for people, or `outcome` as a JSON object. Empty texts are not printed."""
    if as_json:
        say_json({"format_version": FORMAT_VERSION, **outcome})
    elif text:
        say(text)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    what: str,
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]],
    **more: Any,
) -> None:
    """Print `rows` in one of the forms. `what` is the JSON key of the list, `more` further keys of the JSON object.

    columns: heads of the table for people, and what stands below them.
    """
    if form == JSON:
        say_json({"format_version": FORMAT_VERSION, what: list(rows), **more})
    elif form == CSV:
        _print_csv(rows)
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in columns:
            table.add_column(name, no_wrap=True)
        for row in rows:
            table.add_row(*(cell(row) for cell in columns.values()))
        # What goes into a pipe or file keeps its whole width.
        console(width=None if sys.stdout.isatty() else 1000).print(table)


def _print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row under a head; lists and objects inside a cell are JSON."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: strict_json.dumps(v) if isinstance(v, (list, tuple, dict)) else v for k, v in row.items()})
    say(text.getvalue(), end=False)


def seconds(value: float | None) -> str:
    """For people."""
    if value is None:
        return "-"
    return f"{value:.3f} s" if value < 1000 else f"{value:.0f} s"


def percent(value: float | None) -> str:
    """For people, with its sign."""
    return "-" if value is None else f"{100 * value:+.1f} %"


def throughput(value: float | None) -> str:
    """For people."""
    return "-" if value is None else f"{value / 1e6:g} MB/s"
