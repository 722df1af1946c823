# SPDX-License-Identifier: Apache-2.0
"""Bounds of accuracy, as ratios: the bars of the full suite, and the bounds of its short form in the tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """Largest relative errors: of the median program, and of the worst, each by its worst seed."""

    median: float
    worst: float


CALIBRATED, DIRECT = Bar(0.015, 0.04), Bar(0.03, 0.08)
"""On the reference node."""

EMULATED, EMULATED_COVERS = Bar(0.04, 0.10), 0.9
"""On the emulated node: one probe of each program; share of intervals that hold the full run."""

COVERS, REACH = 0.93, 0.06
"""Share of pairs whose 95 % interval holds the full run; median of how far it reaches."""

SHORT_FORM = {"calibrated": 0.08, "direct": 0.12, "selection": 0.05}
"""tests/end_to_end/test_accuracy.py: a second of a program, on a machine that may be busy with other tests."""
