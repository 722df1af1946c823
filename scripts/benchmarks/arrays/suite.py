# SPDX-License-Identifier: Apache-2.0
"""Measure array kernels and print their table: `scripts/bench arrays`."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.arrays import measurement, report
from benchmarks.arrays.programs import FILES, KERNELS
from benchmarks.measure import ROOT
from benchmarks.programs import OWN

FOLDER = ROOT / "build" / "bench" / "arrays"


def run(arguments: argparse.Namespace) -> None:
    """Measure the kernels that are named, or all, as far as they have no record yet; then the table of their records.
    What failed is tried again."""
    names = arguments.only or list(KERNELS)
    if not arguments.report:
        subprocess.run(["make", "-s", "-C", str(OWN.parent), *(f"bin/{file}" for file in FILES)], check=True)
        missing = measurement.due([KERNELS[name] for name in names], FOLDER, arguments.again)
        for record in measurement.measure(missing, FOLDER, arguments.full_runs, _say):
            print(report.line(record), flush=True)
    print(report.tables(measurement.load_all(names, FOLDER)))
    if arguments.write:
        report.write(ROOT / "docs" / "accuracy.md", measurement.load_all(list(KERNELS), FOLDER))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
