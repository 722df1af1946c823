# SPDX-License-Identifier: Apache-2.0
"""`probe check`: whether a probe's phases execute here what they executed where they were made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkpoint.errors import NodeUnfit, PhaseFailed
from probe.cli.figures import percent
from probe.cli.parameters import PROBE_FILE, QUIET
from probe.cli.rows import AS_JSON
from probe.progress import display_for
from probe.terminal import console, one_line, say, say_json

if TYPE_CHECKING:
    from probe.candidates.checking import CheckedPhase, CheckResult


@click.command()
@PROBE_FILE
@click.option("--phase", type=click.IntRange(min=0), help="Check this phase alone.")
@AS_JSON
@QUIET
def check(probe_file: Path, phase: int | None, as_json: bool, quiet: bool) -> None:
    """Check whether a probe's phases execute here what they executed where they were made."""
    from probe.candidates.checking import FAILED
    from probe.candidates.checking import check as check_probe

    result = check_probe(probe_file, phase, display=display_for(quiet))
    if as_json:
        say_json(result.to_json())
    else:
        _print(result)
    if (first := result.first_other) is not None:
        if first.status == FAILED:
            raise PhaseFailed(first.said)
        raise NodeUnfit(f"{_where(first)}: {first.said}; do not trust a prediction from this phase for this node")


def _where(phase: CheckedPhase) -> str:
    inside = f", first in {phase.functions[0][1]} of {phase.functions[0][0]}" if phase.functions else ""
    return f"phase {phase.id} does not execute here what it executed where it was made{inside}"


def _print(result: CheckResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("phase", "time", "blocks", "executions", "calls", "steps", "differing", "status"):
        table.add_column(name, justify="right", no_wrap=True)
    for p in result.phases:
        table.add_row(
            str(p.id), percent(p.time_share), str(p.blocks), str(p.executions), str(p.calls), str(p.steps),
            str(p.differing_blocks), p.status,
        )  # fmt: skip
    console().print(table)
    for p in result.phases:
        if p.said:
            say(one_line(f"phase {p.id}: {p.said}"))
        for image, name, blocks in p.functions:
            say(one_line(f"  {blocks} blocks of {name} in {image}"))
        if p.between:
            low, high, function = p.between
            say(
                one_line(f"  the first between {percent(low)} and {percent(high)} of the executions, before {function}")
            )
