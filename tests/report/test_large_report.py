# SPDX-License-Identifier: Apache-2.0
"""Reports of thousands of phases and nodes: still readable, and no row lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser import render
from made_probe import made_manifest
from report_pages import COLOURS, FIGURES, Tags, drawings, own_fonts, pixels

from probe.inspection.trimming import Tradeoff
from probe.prediction.variance import CAUSES
from probe.report.gathering import Gathered
from probe.report.results import NodeResult, NodeWithout

__all__ = ["own_fonts"]


@pytest.fixture(scope="module")
def thousands() -> Gathered:
    """2,000 phases in 20,000 intervals, and 3,000 nodes with a time of each."""
    manifest, table = made_manifest(2000, 20_000)
    rng = np.random.default_rng(1)
    ref = np.array([p.in_run.cpu for p in manifest.phases])
    nodes = []
    for number, factor in enumerate(np.sort(rng.lognormal(0, 0.5, 3000))):
        times = ref * factor * rng.lognormal(0, 0.1, len(ref))
        times[rng.integers(0, len(ref), 3)] = np.nan
        seconds = manifest.reference.seconds * float(factor)
        nodes.append(
            NodeResult(
                f"node{number:04d}.example.org", f"node{number:04d}", "Example CPU 2", 64, "6.1.0", seconds,
                seconds * 0.9, seconds * 1.1, 0.998,
                {"calibrated": seconds, "direct": seconds * 1.03, "strube": seconds},
                dict.fromkeys(CAUSES, 1e-5), ref, times, {5: f"phase 5 on node{number:04d} was killed"}, 0,
                (f"warning {number % 40}",),
            )
        )  # fmt: skip
    curve = tuple(Tradeoff(n, (), n / 2000, 10_000 * n, 0.02 + 0.1 * (1 - n / 2000)) for n in range(1, 2001))
    without = tuple(NodeWithout(f"lost{n}", f"lost{n}: reason {n}") for n in range(1000))
    measured = {node.name: (node.seconds * 1.02,) for node in nodes[::2]}
    return Gathered("large.probe", 10**9, manifest, table, curve, tuple(nodes), without, measured)


def test_thousands_of_phases_and_nodes(thousands: Gathered, tmp_path: Path) -> None:
    from probe.report.drawing import style
    from probe.report.page import page

    with style():
        text = page(thousands, drawings(thousands))
    assert len(text.encode()) < 5_000_000
    (tmp_path / "large.html").write_text(text)
    seen = render(tmp_path / "large.html", tmp_path, size=(1100, 7000))
    assert (seen.console, seen.requests) == ([], [])
    tags = Tags(seen.dom)
    assert {a.get("id") for tag, a in tags.tags if tag == "figure"} == FIGURES
    assert len([tag for tag, _ in tags.tags if tag == "tr"]) < 500
    assert "The 60 fastest of 3,000 nodes" in " ".join(tags.text.split())
    assert "and 940 more reasons" in tags.text
    for colour in (COLOURS[0], COLOURS[1], COLOURS[4], COLOURS[5]):
        assert pixels(seen.picture, colour) > 200, colour


def test_rows_of_everything_are_in_the_data(thousands: Gathered) -> None:
    by_name = {drawing.name: drawing for drawing in drawings(thousands)}
    assert len(by_name["timeline"].rows) == len(by_name["vectors"].rows) == 20_000
    assert len(by_name["shares"].rows) == len(by_name["tradeoff"].rows) == 2000
    assert len(by_name["predictions"].rows) == 3000 and len(by_name["phase-times"].rows) == 6_000_000
    last = by_name["phase-times"].rows[-1 % 6_000_000]
    assert last[:2] == ("node2999.example.org", 1999)
