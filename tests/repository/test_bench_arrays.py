# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench arrays`: its kernels, records that are not measured again, tables and bars."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.arguments import packages, read_arguments
from benchmarks.arrays import measurement, report, suite
from benchmarks.arrays.programs import FILES, KERNELS
from benchmarks.measure import probe_command
from benchmarks.programs import OWN, Benchmark
from programs import build
from short_budget import with_short
from written_pages import page_with

SHOWN: dict[str, Any] = {
    "clock": "cpu", "counted_share": 0.97, "sites": {"installed": 9, "removed": 1, "seconds": 0.1}, "noise": 1.01,
    "tracing_overhead": 1.1, "phases": [1, 2], "intervals": 90, "warnings": ["thin"], "notes": [],
}  # fmt: skip


def said(seconds: float, direct: float | None = 2.02) -> dict[str, Any]:
    return {
        "prediction": {"seconds": seconds, "low": seconds * 0.98, "high": seconds * 1.02}, "warnings": [],
        "estimators": {"combined": seconds, "calibrated": 2.06, "direct": direct, "strube": 1.9},
    }  # fmt: skip


def row(program: str, **more: Any) -> dict[str, Any]:
    found = measurement.figures(SHOWN, said(2.0), [1.9, 2.0, 2.1])
    return {"program": program, "build_seconds": 30.0, "bench_seconds": 40.0, **found, **more}


def refused(program: str, status: int) -> dict[str, Any]:
    return {"program": program, "failure": f"ValueError: probe build: exit status {status}: x\nprobe: too many phases"}


def test_kernels_are_programs_of_data() -> None:
    assert {"triad", "stencil", "matmul", "fft", "histogram", "spmv", "transpose", "lu", "gather", "smooth"} <= {
        *KERNELS
    }
    subprocess.run(["make", "-s", "-C", str(OWN.parent), *(f"bin/{file}" for file in FILES)], check=True, timeout=120)
    for kernel in KERNELS.values():
        words = [word if not word.isdecimal() else "1" for word in kernel.argv]
        few = words if words[-1] == "1" else [*words, "1"]
        assert subprocess.run(few, check=True, capture_output=True, timeout=60).stdout, few
    assert packages(read_arguments(["arrays", "--only", "spmv"])) == []
    with pytest.raises(SystemExit):
        read_arguments(["arrays", "--only", "words"])


def test_errors_are_those_from_the_mean_of_the_full_runs() -> None:
    found = row("spmv")
    assert found["truth"] == pytest.approx(2.0) and found["held"] and found["half_width"] == pytest.approx(0.02)
    assert found["errors"] == {
        name: pytest.approx(error)
        for name, error in (("combined", 0.0), ("calibrated", 0.03), ("direct", 0.01), ("thesis", -0.05))
    }
    assert measurement.figures(SHOWN, said(2.0, None), [2.0])["errors"]["direct"] is None
    assert not measurement.figures(SHOWN, said(2.0), [2.1])["held"]


def test_what_was_measured_or_refused_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for made in (row("triad"), refused("spmv", 7), {"program": "lu", "failure": "OSError: no"}):
        (tmp_path / f"{made['program']}.json").write_text(json.dumps(made))
    kernels = [KERNELS[name] for name in ("triad", "spmv", "lu", "fft")]
    assert [one.name for one in measurement.due(kernels, tmp_path, False)] == ["lu", "fft"]
    assert measurement.due(kernels, tmp_path, True) == kernels
    monkeypatch.setattr(suite, "FOLDER", tmp_path)
    suite.run(read_arguments(["arrays", "--only", "triad", "lu", "--report"]))
    told = capsys.readouterr().out
    assert "| triad | 2.00 | 97.0% | +0.0 % | +3.0 % | +1.0 % | -5.0 % | ±2.0% | yes | 1.10 | 2 | 30 |" in told
    assert "FAILED: lu: OSError: no" in told and "spmv" not in told


def test_bars() -> None:
    met = report.tables([row("triad"), row("lu")])
    assert (
        "MISSED" not in met and "met: none refused: 0 of 2" in met and "met: counted share >= 95%: least 97.0%" in met
    )
    assert "met: direct estimator within 3%: worst 1.00%" in met and "warned: lu: thin" in met
    far = row("fft", errors=row("fft")["errors"] | {"direct": -0.04}, truth=1.5)
    none = row("gather", errors=row("gather")["errors"] | {"direct": None}, counted_share=0.2)
    missed = report.tables([row("triad"), far, none, refused("spmv", 4), refused("lu", 9)])
    assert "MISSED: none refused: 1 of 4: spmv" in missed and "refused: spmv: probe: too many phases" in missed
    assert "MISSED: counted share >= 95%: least 20.0%: gather" in missed and "fft: took 1.50 s" in missed
    assert "MISSED: direct estimator within 3%: worst 4.00%: fft, gather" in missed
    assert "FAILED: lu: probe: too many phases" in missed and report.tables([])
    assert report.line(refused("spmv", 4)) == "spmv: refused: probe: too many phases"
    assert "FAILED" in report.line(refused("spmv", 9)) and "97.0% counted; direct +1.0 %" in report.line(row("triad"))


@pytest.mark.slow
def test_a_kernel_is_measured(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program of a tenth of a second; how near the prediction is depends on the machine."""
    kernel = Benchmark("short", (str(build("sorter", builds)), "1"), "four ways to sort")
    told: list[str] = []
    monkeypatch.setattr(measurement, "probe_command", with_short(probe_command, 4))
    (found,) = measurement.measure([kernel], tmp_path, 2, told.append)
    assert "failure" not in found and len(found["full"]) == 2 and told == ["bench: short"]
    assert 0.5 < found["counted_share"] <= 1.0 and found["errors"]["direct"] is not None
    assert measurement.load_all(["short", "other"], tmp_path) == [json.loads(json.dumps(found))]
    assert not (tmp_path / "short.probe").exists() and not measurement.due([kernel], tmp_path, False)


def test_tables_are_put_on_their_page(tmp_path: Path) -> None:
    records = [row("triad", date="2026-11-25"), {**refused("spmv", 4), "date": "2026-11-25"}]
    page, once = page_with("accuracy.md", records, report.write, tmp_path)
    assert "| triad | 2.00 |" in once and "- refused: spmv: probe: too many" in once
    report.write(page, [])
    assert page.read_text() == once
