# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench threads`: its programs, rows that are not measured again, tables, and restores that are counted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy import measurement as accuracy
from benchmarks.arguments import read_arguments
from benchmarks.measure import ROOT
from benchmarks.programs import OWN, Benchmark
from benchmarks.threads import measurement, report, restores
from benchmarks.threads.programs import NAMES, WIDTHS, need_inputs, packages, rows, with_threads

SECONDS = 120


def row(program: str, seed: int, error: float = 0.01, **more: Any) -> dict[str, Any]:
    made = {
        "program": program, "seed": seed, "native": 4.0, "errors": {"calibrated": error}, "held": abs(error) < 0.03,
        "reach": 0.03, "clock": "wall", "threads": int(program[-1]), "date": f"2026-11-2{seed}",
        "phases": 9, "tracing": 1.05, "timing": 1.01, "bench_seconds": 60.0,
        "warnings": [],
    }  # fmt: skip
    return made | more


def refused(status: int, said: str) -> dict[str, Any]:
    return {
        "program": "tasks-2",
        "seed": 1,
        "date": "2026-11-24",
        "failure": f"ValueError: probe build: exit status {status}: x\nprobe: {said}",
    }


def test_each_program_has_its_number_of_threads() -> None:
    assert len(NAMES) >= 10 and WIDTHS == (1, 2)
    assert with_threads("sparse", 2).environment["OMP_NUM_THREADS"] == "2"
    assert with_threads("bwa", 2).argv[:4] == ("bwa", "aln", "-t", "2")
    assert "-nt 2 -s" in with_threads("gromacs", 2).argv[2] and "-numthreads 2 " in with_threads("tachyon", 2).argv[2]
    assert with_threads("hmmsearch-few", 2).argv[1:3] == ("--cpu", "2")
    assert with_threads("hmmsearch-few", 1).argv[1:3] == ("--cpu", "0")
    assert all(with_threads(name, width).threads == width for name, width in rows(NAMES, WIDTHS))
    assert rows(["pipeline", "pool"], WIDTHS) == [("pipeline", 2), ("pool", 1), ("pool", 2)]
    assert need_inputs(["sparse", "xz"]) and not need_inputs(["sparse", "queue"]) and "bwa" in packages()


@pytest.mark.parametrize("name", [n for n in NAMES if not need_inputs([n])])
def test_kernels_compute_the_same_with_any_threads(name: str) -> None:
    subprocess.run(["make", "-s", "-C", str(OWN.parent), "bin/openmp", "bin/pthreads"], check=True, timeout=SECONDS)
    said = set()
    for threads in (2, 3) if name == "pipeline" else (1, 2, 3):
        one = with_threads(name, threads)
        done = subprocess.run(
            [*one.argv, "3"], env={**os.environ, **one.environment}, capture_output=True, text=True, timeout=SECONDS,
            check=True,
        )  # fmt: skip
        said.add(done.stdout)
    # Each thread of `barrier` has a round's work of its own.
    assert len(said) == (3 if name == "barrier" else 1) and all(text.startswith(f"{name} ") for text in said)


def test_what_was_measured_or_refused_is_not_measured_again(tmp_path: Path) -> None:
    for made in (
        row("queue-1", 1),
        refused(4, "no place"),
        {"program": "queue-2", "seed": 1, "failure": "OSError: no"},
    ):
        (tmp_path / f"{made['program']}-{made['seed']}.json").write_text(json.dumps(made))
    assert measurement.due(["queue", "tasks"], WIDTHS, [1, 2], tmp_path, False) == {
        "queue-1": [2], "queue-2": [1, 2], "tasks-1": [1, 2], "tasks-2": [2],
    }  # fmt: skip
    assert measurement.due(["queue"], WIDTHS, [1], tmp_path, True) == {"queue-1": [1], "queue-2": [1]}
    assert measurement.due(["queue"], [2], [1], tmp_path, True) == {"queue-2": [1]}
    assert [r["program"] for r in measurement.load_all(["queue", "tasks"], WIDTHS, [1], tmp_path)] == [
        "queue-1", "queue-2", "tasks-2",
    ]  # fmt: skip
    assert [r["program"] for r in measurement.load_all(["queue", "tasks"], [1], [1], tmp_path)] == ["queue-1"]


def test_tables_have_the_worst_seed_bars_and_refusals() -> None:
    records = [
        row("sparse-2", 1, 0.01), row("sparse-2", 2, -0.04), row("pairs-2", 1, 0.005, warnings=["hands out work"]),
        row("pairs-1", 1, 0.06), refused(7, "no place that its first thread reaches"), refused(9, "the disk is full"),
    ]  # fmt: skip
    said = report.tables(records)
    assert "| sparse-2 | 2 | 4.00 | -4.0 % | 1 of 2 | 1.05 | 1.01 | 9 |" in said
    assert "2 threads: MISSED: median error of 2 programs, worst seed of each: 2.25%" in said
    assert "2 threads: met: worst error: 4.00%" in said and "1 thread: MISSED: worst error: 6.00%" in said
    assert "2 threads: MISSED: interval holds the full run: 66.7% of 3" in said
    assert "refused: tasks-2: no place that its first thread reaches" in said and "FAILED: tasks-2 seed 1" in said
    assert "warned: pairs-2: hands out work" in said
    assert report.line(refused(7, "no place")) == "tasks-2 seed 1: refused: probe: no place"
    assert "FAILED" in report.line(refused(9, "full")) and "calibrated +1.0 % ±3.0% holds" in report.line(row("a-1", 1))
    assert report.tables([]) and report.restores([]) == "no restores yet"


def test_bars_go_by_the_threads_that_worked() -> None:
    """Whatever the command line asked for."""
    said = report.tables([row("bwa-1", 1, threads=2)])
    assert "| bwa-1 | 2 |" in said and "2 threads: met: worst error" in said and "1 thread:" not in said


def test_tables_are_put_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text((ROOT / "docs" / "accuracy.md").read_text())
    before = page.read_text()
    for error in (0.04, 0.01):
        report.write(page, [row("sparse-2", 1, error), row("sparse-2", 2, warnings=["hands out work " * 20])])
    said = page.read_text()
    assert "| sparse-2 | 2 | 4.00 | +1.0 % |" in said and "Measured 2026-11-21 to 2026-11-22: " in said
    assert "seeds: 2." in said and "+4.0 %" not in said and "- warned" not in said
    marks = ("<!-- threads -->", "<!-- end of threads -->")
    assert max(len(line) for line in said.partition(marks[0])[2].splitlines() if line.startswith("- ")) <= 120
    assert [text.partition(marks[0])[0] for text in (said, before)].count(before.partition(marks[0])[0]) == 2
    assert said.partition(marks[1])[2] == before.partition(marks[1])[2]


def test_full_runs_get_the_processors_that_the_build_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of two threads, said to have one: the probe knows better."""
    given: list[int] = []
    full_runs = accuracy.full_runs

    def counted(benchmark: Benchmark, *others: Any) -> Any:
        given.append(benchmark.threads)
        return full_runs(benchmark, *others)

    monkeypatch.setattr(accuracy, "full_runs", counted)
    monkeypatch.setattr(accuracy.Pair, "command", lambda *_, **__: {})
    pair = accuracy.Pair(Benchmark("true", ("/bin/true",), "ends"), 1, tmp_path, tmp_path)
    _, _, full = accuracy._run_by_turns(
        pair, accuracy.Settings(0.02, 1, 0.0, False, 0), {"clock": "wall", "threads": 2}, False
    )
    assert given == [2, 2] and len(full) == 2


def test_a_width_is_of_threads_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_arguments(["threads", "--width", "2"]).width == 2 and read_arguments(["threads"]).width is None
    for wrong, said in ((["threads", "--width", "3"], "choose from"), (["noise", "--width", "1"], "is for threads")):
        with pytest.raises(SystemExit, match="2"):
            read_arguments(wrong)
        assert said in capsys.readouterr().err


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two threads need two processors")
def test_restores_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many are flagged depends on the machine, but for those beside a competitor."""
    monkeypatch.setattr(restores, "KINDS", ("barrier",))
    told: list[str] = []
    (found,) = restores.measure(12, tmp_path, told.append)
    assert (found["restores"], found["ended"], found["beside"], found["failures"]) == (12, 12, 1, [])
    assert found["flagged_beside"] == 1 and told
    said = report.restores([found | {"flagged": 0}])
    assert "met: 12 of 12 restores" in said and "met: 100.0% of the repeats beside a competitor are flagged" in said
    assert "MISSED: 11 of 12 restores" in report.restores([found | {"ended": 11}])
