# SPDX-License-Identifier: Apache-2.0
"""Records of disturbed machines: their tables, and predictions from them without a machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.noise import report
from benchmarks.noise.offline import predicted
from benchmarks.noise.recorded import FOLDER, is_due, keep, load_all
from made_probe import made_manifest

from checkpoint.restore.criu_restore import RegionTime
from probe.candidates.result import predict_from
from probe.node.measuring import MeasuredPhase


def record(state: str = "quiet", factor: float = 1.0) -> Any:
    """Of a node as fast as the reference. Full runs take `factor` times what a prediction can know."""
    manifest, _ = made_manifest(3, 60)
    whole = manifest.reference.wall[0]
    voted = replace(manifest.reference, voted=(whole,) * 2, voted_error=(0.002,) * 2, voted_noise=(0.004,) * 2)
    manifest = replace(manifest, reference=voted)
    made = {
        "program": "made", "state": state, "truth": whole * factor, "full": [whole * factor, 1.01 * whole * factor],
        "manifest": manifest.to_json(), "seconds": {"build": 30.0, "run": 12.0}, "bench_seconds": 60.0,
        "candidate": {str(p.id): [[t, t] for t in p.criu.wall] for p in manifest.phases},
        "restorers": {str(p.id): "criu" for p in manifest.phases},
    }  # fmt: skip
    phases = [MeasuredPhase(p.id, tuple(RegionTime(t, t, 0.0, 0.0) for t in p.criu.wall)) for p in manifest.phases]
    return json.loads(json.dumps({**made, "said": predict_from(manifest, phases).to_json()}))


def test_a_record_predicts_what_was_said_and_what_medians_say() -> None:
    made = record()
    now, before = predicted(made), predicted(made, stamped=False)
    assert (
        json.loads(json.dumps(now.to_json())) == made["said"]
        and now.undisturbed is not None
        and before.undisturbed is None
    )
    assert before.estimators["combined"] == before.estimators["calibrated"]
    assert now.seconds == pytest.approx(before.seconds, rel=0.02) and now.half_width != before.half_width


def test_tables_and_bars(tmp_path: Path) -> None:
    said = report.tables([record(), record("disturbed", 1.3), {"program": "gone", "state": "quiet", "failure": "x"}])
    assert "| made | quiet |" in said and "| made | disturbed |" in said and "Failed: gone." in said
    assert "met | quiet: worst error <= 4.0%" in said
    assert "**SHORT** | disturbed: worst error <= 6.0%" in said
    assert "**SHORT** | disturbed: interval holds in >= 93% | 0% |" in said and ", **no** | 30 | 12 |" in said
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- noise -->\nold\n<!-- end of noise -->\nafter\n")
    report.write(page, [record()])
    assert page.read_text().startswith("before\n<!-- noise -->\nCompetitor: ") and "\nold" not in page.read_text()
    assert page.read_text().endswith("<!-- end of noise -->\nafter\n")
    assert report.line(record("quiet")).startswith("made, quiet: ") and "FAILED: x" in report.line(
        {"program": "gone", "state": "quiet", "failure": "x"}
    )


def test_records_are_kept_and_not_made_again(tmp_path: Path) -> None:
    made = record()
    assert is_due("made", "quiet", tmp_path)
    keep({"program": "made", "state": "quiet", "failure": "x"}, tmp_path)
    assert is_due("made", "quiet", tmp_path)
    keep(made, tmp_path)
    assert not is_due("made", "quiet", tmp_path) and is_due("made", "disturbed", tmp_path)
    (kept,) = load_all(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / "made-quiet.json"]
    assert kept["manifest"] == made["manifest"] and kept["truth"] == made["truth"]
    keep({**made, "state": "disturbed", "failure": f"{FOLDER}: x"}, tmp_path)
    assert next(r for r in load_all(tmp_path) if r["state"] == "disturbed")["failure"] == "/project/data/noise: x"
    # Times are rounded, and say the same.
    assert max(len(str(t[0])) for times in kept["candidate"].values() for t in times) <= 8
    assert predicted(kept).seconds == pytest.approx(predicted(made).seconds, rel=1e-4)
