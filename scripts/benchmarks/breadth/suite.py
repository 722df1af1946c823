# SPDX-License-Identifier: Apache-2.0
"""Go through the table of programs, where it stopped, within a limit of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.breadth.measurement import Tool, key, measure
from benchmarks.breadth.programs import Program
from benchmarks.breadth.recorded import FILE, Row, add_row, read_rows, row_key


def due(programs: Sequence[Program], commit: str, again: bool, file: Path = FILE) -> list[Program]:
    """Programs without a row of this command, package version and commit; all of them if `again`. Programs that have
    no row at all come first, then those whose newest row is oldest: a suite of hours is seldom gone through at once."""
    rows = read_rows(file)
    known = {row_key(row) for row in rows}
    last = {row["program"]: number for number, row in enumerate(rows)}
    wanted = [program for program in programs if again or key(program, commit) not in known]
    return sorted(wanted, key=lambda program: last.get(program.name, -1))


def go_through(
    programs: Sequence[Program], folder: Path, tool: Tool, say: Callable[[str], None], *, minutes: float = 0.0,
    file: Path = FILE,
) -> Iterator[Row]:  # fmt: skip
    """Try the programs one after the other; each row is recorded when it is yielded. No program begins later than
    `minutes` from now (0: no limit)."""
    until = time.monotonic() + 60 * minutes
    for number, program in enumerate(programs):
        if minutes and time.monotonic() > until:
            say(f"bench: {minutes:g} minutes are over; {len(programs) - number} programs remain: start it again")
            return
        row = measure(program, folder / "here", folder / "made", tool, say)
        add_row(row, file)
        yield row
