# SPDX-License-Identifier: Apache-2.0
"""Table of candidates, for people and for programs: one row each, a reason where there is no number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from probe.candidates.remote import RESULT_VERSION, CandidateResult
from probe.terminal import one_line

_WIDTH = 400


def candidates_json(probe: str, found: Sequence[CandidateResult]) -> dict[str, Any]:
    """The published form (docs/json.md)."""
    return {"format_version": RESULT_VERSION, "probe": probe, "candidates": [one.to_json() for one in found]}


def print_candidates(found: Sequence[CandidateResult], console: Console) -> None:
    """The table, fastest first; then reasons, notes and warnings by node. Never a number without its interval."""
    if not console.is_terminal:
        # Names of nodes are long, and to be copied: for a file or a pipe the table is as wide as it needs.
        console = Console(file=console.file, width=_WIDTH)
    table = Table(box=None, pad_edge=False)
    table.add_column("node", no_wrap=True)
    for name in ("predicted", "95 % interval", "speed", "coverage", "probing", "transfer", "sent"):
        table.add_column(name, justify="right", no_wrap=True)
    done = sorted((one for one in found if one.result), key=lambda one: one.result.prediction.seconds)  # type: ignore[union-attr]
    for one in done:
        assert one.result is not None and one.relative_speed is not None
        p = one.result.prediction
        table.add_row(
            Text(one_line(one.name)),
            f"{p.seconds:.3f} s", f"{p.low:.3f} to {p.high:.3f} s", f"{one.relative_speed:.3f}",
            f"{p.coverage:.1%}", f"{one.probing:.1f} s", f"{one.transfer:.1f} s", f"{one.sent / 1e6:.1f} MB",
        )  # fmt: skip
    for one in found:
        if one.result is None:
            table.add_row(Text(one_line(one.name)), "none", "", "", "", "", "", "")
    console.print(table)
    for one in found:
        lines = [f"no prediction: {_without(one.name, str(one.error))}"] if one.error is not None else []
        lines += [f"note: {_without(one.name, note)}" for note in one.notes]
        if one.result is not None:
            lines += [f"failed: {phase.failure}" for phase in one.result.phases if phase.failure]
            lines += [f"warning: {warning}" for warning in one.result.warnings]
            if one.result.narrowed is not None and not one.result.narrowed.limit:
                lines.append(f"target error: {one.result.narrowed.sentence()}")
        for quiet in one.quiet:
            if disturbed := quiet.get("disturbed"):
                lines.append(f"note: {disturbed} repeats were disturbed by other load and made again")
        for line in dict.fromkeys(lines):
            console.print(one_line(f"{one.name}: {line}"), highlight=False, markup=False, soft_wrap=True)


def _without(name: str, text: str) -> str:
    return text[len(name) :].lstrip(": ") if text.startswith(name) else text
