# SPDX-License-Identifier: Apache-2.0
"""Measure direct builds and print their tables: `scripts/bench rootless`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.inputs import make_inputs, make_programs, make_short_inputs
from benchmarks.measure import ROOT
from benchmarks.rootless import lengths, measurement, report
from benchmarks.rootless.programs import CAPTURED, NAMES, whole

FOLDER = ROOT / "build" / "bench" / "rootless"
DATA = ROOT / "build" / "bench" / "data"


def run(arguments: argparse.Namespace) -> None:
    """Measure what is named, or all, as far as it has no record yet; then the tables of all records there are. What
    failed is tried again."""
    names = arguments.only or list(NAMES)
    if not arguments.report:
        _measure(names, arguments)
    records = measurement.load_all(names, FOLDER)
    print(report.tables(records))
    if arguments.write:
        report.write(ROOT / "docs" / "figures.md", measurement.load_all(NAMES, FOLDER))


def _measure(names: Sequence[str], arguments: argparse.Namespace) -> None:
    if any(name in CAPTURED and CAPTURED[name].package for name in names):
        make_inputs(DATA, media=False, say=_say)
        make_short_inputs(DATA)
    else:
        make_programs(DATA)
    seeds = range(1, arguments.seeds + 1)
    for record in measurement.measure(
        names, seeds, data=DATA, folder=FOLDER, again=arguments.again, untimed=arguments.untimed, say=_say
    ):
        print(report.line(record), flush=True)
    programs = [program for name, program in whole(arguments.long).items() if name in names]
    missing = lengths.due(programs, FOLDER, arguments.nine, arguments.again)
    for record in lengths.measure(missing, data=DATA, folder=FOLDER, nine=arguments.nine, say=_say):
        print(report.line(record), flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
