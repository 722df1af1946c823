# SPDX-License-Identifier: Apache-2.0
"""Do what the command line of `scripts/bench hosts` asks for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.hosts import kept, measurement, recorded, report


def measure_all(arguments: argparse.Namespace, page: Path, say: Callable[[str], None]) -> None:
    """Measure what this processor has no row of yet, note the rows, and draw the page."""
    if arguments.build:
        kept.build_probes(arguments.programs or [], say)
        return
    if not arguments.report:
        for row in measurement.measure(arguments.again, say):
            recorded.add_rows([row])
            print(report.line(row), flush=True)
    rows = recorded.read_rows()
    print(report.tables(rows))
    if arguments.write or not arguments.report:
        report.write(page, rows)
