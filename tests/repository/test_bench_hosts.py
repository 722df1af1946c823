# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench hosts`: rows by processor, a damaged file of rows, and the page drawn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.hosts import recorded, report
from benchmarks.hosts.kept import KEPT, PROBES, read_index
from benchmarks.hosts.processor import caches, key, this_processor
from documentation import ROOT

from probe.formats.manifest import Manifest
from reducer.unpack import open_probe

HERE: dict[str, Any] = {
    "make": "M", "name": "Here", "family": 6, "model": 1, "stepping": 2, "caches": {"3 Unified": "32M"},
    "features": ["avx2"], "kernel": "6.1",
}  # fmt: skip
THERE = {**HERE, "name": "There", "caches": {"3 Unified": "8M"}, "features": ["avx2", "avx512f"]}


def row(program: str, host: dict[str, Any], error: float = 0.01, held: bool = True) -> dict[str, Any]:
    return {
        "program": program, "kind": "k", "probe": f"id-{program}", "date": "2026-01-01", "et_ref": 2.0, "clock": "cpu",
        "other_files": [], "noise": {"hash": 0.01, "copy": 0.2}, "full": [4.0, 4.0, 4.0], "predicted": 4 * (1 + error),
        "low": 3.9, "high": 4.1, "errors": {"calibrated": error, "direct": -error}, "error": error, "held": held,
        "ratio": 2.0, "host": host, "built_on": HERE,
    }  # fmt: skip


def test_rows_are_kept_one_for_each_probe_and_processor(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    assert recorded.read_rows(file) == []
    recorded.add_rows([row("a", HERE), row("b", HERE)], file)
    recorded.add_rows([row("a", THERE)], file)
    recorded.add_rows([row("a", HERE, 0.5)], file)
    found = [(r["program"], r["host"]["name"], r["error"]) for r in recorded.read_rows(file)]
    assert found == [("b", "Here", 0.01), ("a", "There", 0.01), ("a", "Here", 0.5)]
    rows = recorded.read_rows(file)
    assert recorded.missing(["id-a", "id-b"], rows, THERE) == ["id-b"]
    assert recorded.missing(["id-a", "id-b"], rows, {**HERE, "kernel": "7.0", "name": "renamed"}) == []
    assert [p.name for p in tmp_path.iterdir()] == ["hosts.json"]


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"format_version": 2, "rows": []}', '{"format_version": 1, "rows": [1]}']
)
def test_a_damaged_file_of_rows_is_named_and_left_alone(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(damage)
    with pytest.raises(recorded.DamagedRecord, match=r"hosts\.json"):
        recorded.add_rows([row("a", HERE)], file)
    assert file.read_text() == damage and len(list(tmp_path.iterdir())) == 1


def test_this_processor_is_told_from_others() -> None:
    mine = this_processor()
    assert mine["make"] and mine["family"] >= 0 and key(mine) == key(this_processor())
    assert key(HERE) != key(THERE) != key({**THERE, "stepping": 3})
    assert caches(Path("/nonexistent")) == {}


def test_the_bars_are_judged_on_other_processors_alone() -> None:
    text = report.tables([row("a", HERE, 0.9, held=False)])
    assert "cannot be judged" in text and "**no**" in text and "built on this processor" in text
    text = report.tables([row("a", HERE, 0.9), row("a", THERE, 0.05, held=False), row("b", THERE)])
    assert "1 of 2 intervals hold" in text and "3.0% in the median" in text and "worst 5.0%" in text
    assert "There (6/1/2, 8M last-level cache, AVX-512)" in text and "Built on: Here" in text


def test_a_probe_that_cannot_run_and_another_version_are_rows_too() -> None:
    whole = row("a", THERE)
    failed = {k: whole[k] for k in ("program", "kind", "probe", "date", "host", "built_on")}
    other = {**row("b", THERE), "other_files": ["/x"]}
    text = report.tables([{**failed, "failure": "this processor lacks avx2"}, other])
    assert "none: this processor lacks avx2" in text and "| b (other files) |" in text


def test_the_page_shows_the_recorded_rows(tmp_path: Path) -> None:
    """docs/hosts.md is drawn, never written by hand."""
    page = tmp_path / "hosts.md"
    page.write_text((ROOT / "docs" / "hosts.md").read_text())
    report.write(page, recorded.read_rows())
    assert page.read_text() == (ROOT / "docs" / "hosts.md").read_text(), "run scripts/bench hosts --report --write"


def test_every_kept_probe_is_as_noted() -> None:
    index = read_index()
    assert set(index) == {p.name for p in KEPT} and 5 <= len(KEPT) <= 8
    assert sum(path.stat().st_size for path in PROBES.glob("*")) < 25e6
    for program in KEPT:
        with open_probe(program.probe) as archive:
            archive.verify()
            manifest = Manifest.from_json(archive.manifest)
        noted = index[program.name]
        assert (manifest.id, list(manifest.program.argv)) == (noted["probe"], noted["argv"])
