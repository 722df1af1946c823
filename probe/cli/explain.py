# SPDX-License-Identifier: Apache-2.0
"""`probe explain`: what a probe's phases do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from checkpoint.linux import PAGE_SIZE
from probe.cli.figures import sharing_words
from probe.cli.rows import AS_JSON
from probe.terminal import one_line, say, say_json


@click.command()
@click.argument("probe_file", metavar="FILE.probe", type=click.Path(path_type=Path, readable=False))
@click.option("--phase", type=click.IntRange(min=0), help="This phase alone, in full; without it a line for each.")
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Most functions, lines, mappings, calls."
)
@AS_JSON
def explain(probe_file: Path, phase: int | None, top: int, as_json: bool) -> None:
    """Show which code, memory and system calls the phases of a probe use."""
    from probe.inspection.explanation import explain as explain_probe

    found = explain_probe(probe_file, phase, top=top)
    if as_json:
        say_json(found)
        return
    if phase is None:
        _print_overview(found["phases"])
    else:
        _print_phase(found["phases"][0])
    for warning in found["warnings"]:
        say(one_line(f"warning: {warning}"))


def _print_overview(phases: list[dict[str, Any]]) -> None:
    rows = []
    for phase in phases:
        shown = [
            f"{f['name']} {_percent(f['instructions'] if f['time'] is None else f['time'])}"
            for f in phase["functions"][:3]
        ]
        rows.append(
            [
                str(phase["id"]), _percent(phase["time_share"]), _percent(phase["weight"]),
                _size(phase["pages"]["touched"]), _calls(phase),
                ", ".join(shown),
            ]
        )  # fmt: skip
    _print_table(["phase", "time", "weight", "touched", "calls", "mostly in"], rows)


def _calls(phase: dict[str, Any]) -> str:
    if phase["calls_made"] is None or not (phase["all_calls"] or phase["calls_made"]):
        return "-"
    return f"{'' if phase['all_calls'] else '>'}{phase['calls_made']}"


def _print_phase(phase: dict[str, Any]) -> None:
    say(
        f"phase {phase['id']}: {_percent(phase['time_share'])} of the time, {_percent(phase['weight'])} of the "
        f"instructions, in {phase['intervals']} intervals; its representative begins at "
        f"{phase['started_seconds']:.2f} s"
    )
    columns = ["time", "instructions"]
    if phase["functions"]:
        rows = [[*_shares(f), f["name"], f["image"]] for f in phase["functions"]]
        _print_table([*columns, "function", "in"], rows)
    if phase["lines"]:
        say()
        _print_table(
            [*columns, "line", "function"],
            [[*_shares(x), f"{x['file']}:{x['line']}", x["function"]] for x in phase["lines"]],
        )
    pages = phase["pages"]
    say()
    say(f"memory: {_size(pages['touched'])} touched of {_size(pages['raw'])}, {_size(pages['kept'])} in the probe")
    if phase["mappings"]:
        _print_table(
            ["touched", "mapped", "mapping"],
            [[_size(m["touched"]), _size(m["mapped"]), m["name"] or m["kind"]] for m in phase["mappings"]],
        )
    if phase["sharing"]:
        say()
        say(one_line(f"threads: {sharing_words(phase['sharing'])}"))
    if phase["all_calls"] is not None:
        say()
        made = ", ".join(f"{c['name']} {c['times']}" for c in phase["calls"])
        unknown = "" if phase["all_calls"] else " (not all were counted)"
        say(one_line(f"system calls: {made or 'none'}{unknown}"))


def _shares(one: dict[str, Any]) -> list[str]:
    return [_percent(one["time"]), _percent(one["instructions"])]


def _print_table(heads: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as their widest cell, the last two to the left: names are never cut."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    numbers = len(heads) - (2 if heads[-1] in ("in", "function") else 1)
    for row in [heads, *rows]:
        cells = [c.rjust(w) if i < numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        say(one_line("  ".join(cells).rstrip()))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _size(pages: int) -> str:
    size = pages * PAGE_SIZE
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size // 1024} KiB"
