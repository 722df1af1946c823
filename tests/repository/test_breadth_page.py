# SPDX-License-Identifier: Apache-2.0
"""Rows that `scripts/bench breadth` records, and the page drawn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.breadth import recorded, report
from benchmarks.breadth.measurement import FAILED, PREDICTED, REFUSED, UNUSABLE
from documentation import ROOT

# -- the recorded rows


def row(program: str, **changes: Any) -> dict[str, Any]:
    return {
        "program": program, "command": f"{program} x", "package": f"{program} 1", "commit": "c1", "kind": "k",
        "date": "2026-01-01", "aside": False, "machine": "M", "expected": "", "outcome": PREDICTED,
        "full": [2.0, 2.0, 2.0], "predicted": 2.02, "low": 1.9, "high": 2.1, "half_width": 0.02, "held": True,
        "errors": {"calibrated": 0.03, "direct": -0.02}, "tracing": 1.05, "phases": 3,
        "load": {"others": 0.1, "stolen": 0.0}, "native": {"threads": 1, "processes": 1, "largest": 0.99}, **changes,
    }  # fmt: skip


def refused(program: str, **changes: Any) -> dict[str, Any]:
    said = {"outcome": REFUSED, "rightly": False, "late": 30.0, "share": 6.0, "message": "no | never", "exit": 4}
    return row(program, **{**said, **changes})


def test_a_row_gives_way_to_a_newer_one_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "breadth.jsonl"
    assert recorded.read_rows(file) == []
    for one in (row("a"), row("b"), row("a", commit="c2"), row("a", predicted=3.0)):
        recorded.add_row(one, file)
    found = [(r["program"], r["commit"], r["predicted"]) for r in recorded.read_rows(file)]
    assert found == [("b", "c1", 2.02), ("a", "c2", 2.02), ("a", "c1", 3.0)]
    assert [(r["program"], r["predicted"]) for r in recorded.newest(recorded.read_rows(file))] == [
        ("b", 2.02),
        ("a", 3.0),
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["breadth.jsonl"]


HEAD = '{"rows": "scripts/bench breadth", "format_version": 1}\n'


@pytest.mark.parametrize(
    "damage",
    [
        "", "{", "[]", HEAD + '{"program": "a"', HEAD + '{"program": "a"}', HEAD + "7", '{"format_version": 2}',
        HEAD.replace("1", "2"), "\x00\xff",
    ],
)  # fmt: skip
def test_a_damaged_file_of_rows_is_named_and_left_alone(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "breadth.jsonl"
    file.write_text(damage)
    with pytest.raises(recorded.DamagedRecord, match=r"breadth\.jsonl"):
        recorded.add_row(row("a"), file)
    assert file.read_text() == damage and len(list(tmp_path.iterdir())) == 1


# -- the page


def test_each_figure_is_judged_against_its_bar() -> None:
    rows = [row(f"p{n}") for n in range(9)]
    assert all(met for _, _, _, met in report.bars(rows) if met is not None)
    rows += [row("late", predicted=2.4, held=False, half_width=0.3, tracing=1.5), refused("w")]
    rows += [row("disturbed", full=[2.0, 2.2], predicted=4.2, held=False)]
    rows += [refused("t", rightly=True, expected="threads", late=9.0), row("u", outcome=UNUSABLE, message="no")]
    found = {what: (measured, met) for what, _, measured, met in report.bars(rows)}
    assert list(found.values()) == [
        ("11 of 12, 92%", True), ("1", False), ("1 of 2, 50%", False), ("1.00%", True), ("20.00%", False),
        ("9 of 10, 90%", False), ("2.00%", True), ("1.00%, 100.00%", None), ("9 of 11, 82%", None), ("2.00%", None),
        ("1.050", True), ("1.500", False),
    ]  # fmt: skip
    assert report.in_time(refused("x", late=100.0, share=0.2)) and not report.in_time(refused("x", late=11.0))


def test_a_failure_is_not_predicted_and_wrong() -> None:
    rows = [row("a"), row("b", outcome=FAILED, message="Traceback", late=1.0, share=1.0)]
    found = [(measured, met) for _, _, measured, met in report.bars(rows)]
    assert found[:2] == [("1 of 2, 50%", False), ("1", False)]


def test_the_tables_show_rows_of_every_outcome() -> None:
    rows = [row("a", aside=True), refused("b"), refused("c", rightly=True, expected="threads")]
    rows += [row("d", outcome=UNUSABLE, message="exit status 3"), row("b", commit="c0")]
    text = report.tables([rows[-1], *rows[:-1]])
    rows[0]["reference"] = 1.98
    assert "| `a x` | 2.00 | -1.0% | 2.02 |" in report.tables(rows)
    assert (
        "| a (a 1) (aside) | k | `a x` | 2.00 | - | 2.02 | 1.90 to 2.10 | +1.0% | +3.0% | -2.0% | - | yes | 2.0% | 3 |"
        in text
    )
    assert (
        "| b (b 1) | `b x` | threads 1, processes 1, largest 99% | refused wrongly |  | 30 s, 600% | no / never |"
        in text
    )
    assert (
        "| c (c 1) | `c x` | threads 1, processes 1, largest 99% | refused rightly | threads |" in text
        and "| unusable |" in text
    )
    assert "probe of `c1`." in text and report.tables([]).startswith("No row yet")
    many = report.tables(
        [{**row, "program": f"{row['program']}{n}", "commit": f"c{n}"} for row in rows for n in range(5)]
    )
    assert "probe of 5 commits, which `data/breadth.jsonl` names." in many
    assert report.line(rows[1]) == "b: refused wrongly after 30 s, 600% of the native time: no | never"
    assert "predicted 2.020 s ± 2.0%, measured 2.000 s: +1.0%, interval holds" in report.line(rows[0])


def test_the_page_shows_the_recorded_rows(tmp_path: Path) -> None:
    """docs/breadth.md is drawn, never written by hand."""
    page = tmp_path / "breadth.md"
    page.write_text((ROOT / "docs" / "breadth.md").read_text())
    report.write(page, recorded.read_rows())
    assert page.read_text() == (ROOT / "docs" / "breadth.md").read_text(), "run scripts/bench breadth --report --write"
