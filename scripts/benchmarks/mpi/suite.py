# SPDX-License-Identifier: Apache-2.0
"""Do what the command line of `scripts/bench mpi` asks for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.mpi import measurement, report
from benchmarks.mpi.programs import NAMES


def measure_all(arguments: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> None:
    """Measure the MPI programs that have no record yet, then the table of all records there are."""
    names = arguments.only or list(NAMES)
    if not arguments.report:
        for record in measurement.measure(measurement.due(names, folder, arguments.again), folder, say):
            print(report.line(record), flush=True)
    print(report.tables(measurement.load_all(names, folder)))
