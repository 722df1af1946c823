# SPDX-License-Identifier: Apache-2.0
"""`probe usage`: what is in resource profiles, and how far repeated ones differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli.figures import percent, seconds, size
from probe.cli.rows import AS_JSON
from probe.terminal import console, one_line, say, say_json

if TYPE_CHECKING:
    from probe.emulation.metrics import Spread
    from probe.emulation.usage import Usage


@click.command()
@click.argument(
    "files", metavar="FILE.usage...", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False)
)
@AS_JSON
def usage(files: tuple[Path, ...], as_json: bool) -> None:
    """Show resource profiles; of several with one command and the same tags mean, spread and range."""
    from probe.emulation.metrics import key_of, spreads, usage_json
    from probe.emulation.usage import load_usage

    read = [(str(file), load_usage(file)) for file in files]
    if as_json:
        say_json(usage_json(read))
        return
    if len(read) == 1:
        print_usage(*read[0])
        return
    for key in dict.fromkeys(key_of(one) for _, one in read):
        same = [one for _, one in read if key_of(one) == key]
        tags = "".join(f" {name}={value}" for name, value in key[1])
        say(one_line(f"{' '.join(key[0])}{'; tags' * bool(tags)}{tags}: {len(same)} profiles"))
        _print_spreads(spreads(same))


def print_usage(name: str, shown: Usage) -> None:
    """One profile for people: what is known, and what is not and why."""
    from rich.table import Table

    from probe.emulation.metrics import metrics

    header = shown.header
    say(one_line(f"command         {' '.join(header.command)}"))
    if header.tags:
        say(one_line(f"tags            {' '.join(f'{k}={v}' for k, v in sorted(header.tags.items()))}"))
    node = header.node
    say(one_line(f"node            {node.name}, {node.cpu}, {node.cores} cores, {size(node.memory)}"))
    say(one_line(f"run             {seconds(shown.seconds)}, exit status {header.exit_status}"))
    say(one_line(f"profile         {name}, {shown.samples} samples"))
    table = Table(box=None, pad_edge=False)
    for head in ("figure", "total", "source"):
        table.add_column(head)
    unknown: dict[str, list[str]] = {}
    for metric in metrics(shown)[1:]:
        if metric.total is None:
            unknown.setdefault(metric.missing, []).append(metric.name)
        else:
            table.add_row(metric.name, _figure(metric.total, metric.unit), metric.source)
    console().print(table)
    for reason, names in unknown.items():
        say(one_line(f"unknown: {', '.join(names)}: {reason}"))
    for end in header.endpoints[:10]:
        said = f"{size(round(end.received))} received, {size(round(end.sent))} sent"
        say(one_line(f"endpoint: {end.address} port {end.port}: {said}"))
    for note in header.notes:
        say(one_line(f"note: {note}"))


def _print_spreads(rows: list[Spread]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("figure", "runs", "mean", "spread", "least", "most"):
        table.add_column(head, justify="left" if head == "figure" else "right")
    for row in rows:
        spread = percent(row.deviation / row.mean) if row.deviation is not None and row.mean else "-"
        figures = [_figure(value, row.unit) for value in (row.least, row.most)]
        table.add_row(row.name, str(row.runs), _figure(row.mean, row.unit), spread, *figures)
    console().print(table)


def _figure(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return size(round(value))
    return f"{value:.6g} {unit}" if unit else percent(value)
