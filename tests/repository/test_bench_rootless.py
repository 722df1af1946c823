# SPDX-License-Identifier: Apache-2.0
"""`scripts/bench rootless`: its programs, records that are not measured again, what is compared, tables and bars."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.arguments import packages, read_arguments
from benchmarks.measure import probe_command
from benchmarks.programs import Benchmark
from benchmarks.rootless import both, lengths, measurement, report, suite
from benchmarks.rootless.programs import CAPTURED, COMPARED, NAMES, Scaled, whole
from benchmarks.rootless.room import fullest
from programs import build
from short_budget import with_short
from written_pages import page_with

from checkpoint.linux import PAGE_SIZE
from checkpoint.state.process_state import PAGE_PRESENT, File, FileKind, PageRun, ProcessState, Vma, VmaStatus

GB = 1_000_000_000


def seed(**more: Any) -> dict[str, Any]:
    made = {
        "phases": 4, "pages": 1000, "left_out": 900, "asked_for": [], "whole": [], "stops": [[GB, 1.0, 1.1]],
        "room": {"peak": 35, "resident": 10, "probe": 5},
    }  # fmt: skip
    return made | more


def row(program: str, *, seeds: int = 5, **more: Any) -> dict[str, Any]:
    made = {"program": program, "date": "2026-11-25", "bench_seconds": 60.0}
    return made | {"seeds": {str(n): seed() for n in range(1, seeds + 1)}} | more


def against(ratios: tuple[float, ...] = (1.001, 0.998), **state: Any) -> dict[str, Any]:
    equal = {
        "stops": 4,
        "refused": [],
        "header": [],
        "pages": 9000,
        "missing": 0,
        "extra": 0,
        "zeros": 3,
        "contents": 0,
    }
    return {"state": equal | state, "ratios": {str(n): r for n, r in enumerate(ratios)}, "prediction": 1.0}


def built(program: str, times: float, error: float = 0.01, **more: Any) -> dict[str, Any]:
    found = {
        kind: {"seconds": 10.0 * times, "times": times - (kind == "none"), "runs": 3 if kind == "default" else None,
               "error": error if kind == "default" else 0.005, "half_width": 0.02, "held": abs(error) < 0.02}
        for kind in ("default", "none", "nine")
    }  # fmt: skip
    made = {
        "program": program, "date": "2026-11-25", "bench_seconds": 9.0, "builds": found, "wall": 10.0, "truth": 10.0,
        "spread": 0.003, "stops": [[GB, 1.0, 1.1]], "room": {"peak": 25, "resident": 10, "probe": 5},
    }  # fmt: skip
    return made | more


def test_programs_are_as_many_as_the_bars_want() -> None:
    assert len(CAPTURED) == 20 and len(COMPARED) == 10 and set(COMPARED) <= set(CAPTURED) and len(set(NAMES)) == 25
    assert packages(read_arguments(["rootless", "--only", "lu", "long", "memory-250"])) == []
    assert packages(read_arguments(["rootless", "--only", "python3"])) == ["gcc", "hmmer", "python3"]
    assert whole(2.5)["long"].seconds == 150 and whole(2.5)["long"].benchmark(9).argv[1:] == ("9",)
    for wrong in (["--only", "words"], ["--long", "0"], ["--seeds", "0"]):
        with pytest.raises(SystemExit, match="2"):
            read_arguments(["rootless", *wrong])


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a seed, nor the comparison with CRIU, which needs the first seed's build again."""
    for made in (row("lu", compared=against()), row("histogram", seeds=2), row("spmv"), row("memory-250", seeds=1)):
        measurement.keep(made, tmp_path)
    assert measurement.due(NAMES, range(1, 6), tmp_path, False)[-3:] == ["minisat", "cc1", "memory-1000"]
    assert measurement.due(["lu", "histogram", "spmv", "memory-250"], [1, 2], tmp_path, False) == ["histogram"]
    assert measurement.due(["lu"], [1], tmp_path, True) == ["lu"]
    assert measurement.missing("histogram", range(1, 5), row("histogram", seeds=2)) == [1, 3, 4]
    assert measurement.missing("spmv", range(1, 5), row("spmv", seeds=2)) == [3, 4]
    assert measurement.missing("memory-250", range(1, 5), {}) == [1]
    untimed = row("lu", compared=against(()))
    assert measurement.missing("lu", [1, 2], untimed) == [1] and measurement.missing("lu", [1, 2], untimed, True) == []
    assert measurement.missing("lu", [1, 2], row("lu"), True) == [1]
    measurement.keep(built("long", 3.0, wanted=1200.0), tmp_path)
    one = whole(20)["long"]
    assert lengths.due([one], tmp_path, True, False) == [] and lengths.due([one], tmp_path, True, True) == [one]
    assert lengths.due([replace(one, seconds=300.0)], tmp_path, False, False)
    monkeypatch.setattr(suite, "FOLDER", tmp_path)
    suite.run(read_arguments(["rootless", "--only", "lu", "long", "--report"]))
    told = capsys.readouterr().out
    assert "| lu | 4 | equal | 9,000 | 0 |" in told and "| long | 10.0 | as it is | 3.00 | 3 |" in told
    assert "spmv" not in told


def test_bars_are_met() -> None:
    said = report.tables([*(row(name, compared=against()) for name in COMPARED), built("long", 3.0),
                          built("sorter-30s", 5.0)])  # fmt: skip
    assert "met: header and page set are those of CRIU's dump: 10 of 10 programs; 40 stops" in said
    assert "met: no page that was left out is asked for: 0 in 200 phases; 50 of 100 measured" in said
    assert "met: T_ref, direct against CRIU: median within 0.5%: 0.15% of 20 phases" in said
    assert "met: stop until pages are copied: 5 ms and 1100 ms a GB: 0 of 52 over" in said
    assert "MISSED: stop until pages are reduced, as a fork would let it go on: 5 ms and 50 ms a GB: 52 of 52" in said
    assert "met: long program, whole build: at most 3.1 native times: 3.00" in said
    assert "met: the same with --runs 0: at most 2.1 native times: 2.00" in said
    assert "met: program of 30 s, whole build: at most 6 native times: 5.00" in said
    assert "met: work folder: at most 3 times the program's memory, and the probe: 3.0 times" in said
    assert "| lu | 4 | equal | 9,000 | 0 | -0.05 % | -0.20 % | 5 | 20 | 90.0% | 0 | 1000 | 1100 | 3.0 |" in said
    assert report.tables([]) and "not measured: header" in report.tables([])


def test_bars_are_missed_by_name() -> None:
    asked = {"1": seed(asked_for=["phase 2: the page at 0x1000 was dropped and is asked for"], whole=["odd"])}
    records = [
        row("lu", compared=against((1.03, 1.0), header=["layout"], missing=2)),
        row("python3", compared=against((1.01, 1.01), refused=["a timer"])),
        row("spmv") | {"seeds": asked}, built("long", 3.3, -0.04), built("phases-30s", 7.0, 0.006),
        row("gather") | {"seeds": {"1": seed(stops=[[GB, 1.2, 1.3], [1000, 0.004, 0.01]], room={
            "peak": 45, "resident": 10, "probe": 5})}},
        {"program": "cc1", "date": "2026-11-25", "bench_seconds": 1.0, "failure": "ValueError: x\nprobe: no"},
    ]  # fmt: skip
    said = report.tables(records)
    assert "0 of 2 programs; lu (layout, 2 pages missing), python3 (not captured: a timer); 2 of 10 measured" in said
    assert "MISSED: no page that was left out is asked for: 1 in" in said and "; spmv; 12 of 100 measured" in said
    assert "MISSED: T_ref, direct against CRIU: median within 0.5%: 1.00%" in said
    assert "MISSED: T_ref, direct against CRIU: worst within 2%: 3.00%; lu" in said
    assert "MISSED: stop until pages are copied: 5 ms and 1100 ms a GB: 1 of 15 over, longest 1200 ms" in said
    assert "MISSED: long program, whole build: at most 3.1 native times: 3.30; long (10 s)" in said
    assert "MISSED: the same with --runs 0" in said and "native times: 7.00; phases-30s (10 s)" in said
    assert "beyond what full runs differ by: 1 of 2; long" in said and "full runs: 1 of 2; long" in said
    assert "MISSED: work folder" in said and "4.0 times at worst" in said and "kept whole: spmv: odd" in said
    assert "FAILED: cc1: probe: no" in said and "FAILED" in report.line(records[-1])
    assert "2 differences, T_ref +3.00 % at worst" in report.line(records[0])
    assert "as it is 3.30, --runs 0 2.30" in report.line(records[3])


def test_an_error_is_no_worse_within_what_full_runs_differ_by() -> None:
    assert not report.worse_than_nine(built("long", 3.0, -0.0079)) and report.worse_than_nine(
        built("long", 3.0, 0.0081)
    )


def test_an_argument_follows_from_two_others() -> None:
    assert lengths.scaled(30.0, (2, 5), (3.0, 6.0)) == 29 and lengths.scaled(0.1, (2, 5), (3.0, 6.0)) == 1
    with pytest.raises(ValueError, match="no longer"):
        lengths.scaled(30.0, (2, 5), (3.0, 3.0))


def test_builds_are_judged_by_the_clock_of_the_probe_and_timed_by_the_wall() -> None:
    plain = [{"cpu": 9.0, "wall": 10.0}, {"cpu": 11.0, "wall": 10.0}]
    builds = {"default": {"seconds": 31.0}}
    said = {"default": {"prediction": {"seconds": 10.5, "low": 9.9, "high": 11.1}}}
    found = lengths.judged(builds, said, plain, "cpu")
    one = found["builds"]["default"]
    assert one["times"] == pytest.approx(3.1) and one["error"] == pytest.approx(0.05) and one["held"]
    assert one["half_width"] == pytest.approx(0.6 / 10.5) and found["spread"] == pytest.approx(0.2)


def state(folder: Path, held: dict[int, int], **more: Any) -> ProcessState:
    """A process that holds pages filled with these bytes, by page number."""
    folder.mkdir()
    runs = tuple(PageRun(at * PAGE_SIZE, 1, PAGE_PRESENT) for at in held)
    made = ProcessState(folder, (), 1, "it", 3, {"ip": 5}, 0, 0, 0, 0o22, (), runs, 1, {}, (), **more)
    made.pages_image.write_bytes(b"".join(bytes([value]) * PAGE_SIZE for value in held.values()))
    return made


def test_differences_are_named_and_counted(tmp_path: Path) -> None:
    ours = state(tmp_path / "a", {1: 7, 2: 8, 3: 0, 5: 1, 9: 4})
    theirs = state(tmp_path / "b", {1: 7, 2: 9, 4: 1, 9: 4})
    found = both.differences(ours, theirs)
    outside = ["0x4000 in no mapping"]
    assert found == {
        "header": [], "pages": 3, "missing": 1, "extra": 1, "zeros": 1, "unwritten": 0, "contents": 1,
        "places": outside,
    }  # fmt: skip
    mapped = Vma(0, PAGE_SIZE, 1, 2, VmaStatus.REGULAR, 0, 0, 0)
    file = File(7, FileKind.REGULAR, str(tmp_path / "code"), 0, 0, None, 0)
    code = Vma(3 * PAGE_SIZE, 6 * PAGE_SIZE, 5, 2, VmaStatus.FILE_PRIVATE, 7, PAGE_SIZE, 0)
    of_file = replace(theirs, vmas=(code,), files={7: file})
    for byte, missing in ((b"\1", 0), (b"\2", 1)):
        (tmp_path / "code").write_bytes(bytes(2 * PAGE_SIZE) + byte * PAGE_SIZE)
        compared = both.differences(ours, of_file)
        assert (compared["missing"], compared["unwritten"]) == (missing, 1 - missing)
    named = both.differences(ours, replace(theirs, vmas=(replace(mapped, end=8 * PAGE_SIZE, status=VmaStatus.HEAP),)))
    assert named["places"] == ["0x4000 in 0x0-0x8000, status 0x20, protection 1"]
    forked = replace(mapped, advice=1 << 18)
    moved = replace(theirs, vmas=(mapped,), timers=((1, 2, 3, 4),))
    same = replace(theirs, vmas=(forked, replace(mapped, status=VmaStatus.VVAR)), timers=((1, 2, 9, 9),))
    assert both.differences(same, moved)["header"] == []
    assert both.differences(replace(theirs, comm="other", registers={}), moved)["header"] == [
        "registers", "name", "timers", "mappings",
    ]  # fmt: skip
    lines = [json.dumps(found), json.dumps({**found, "header": ["name"]}), json.dumps({"refused": "a timer"})]
    assert both.summary(lines) == {
        "stops": 2, "refused": ["a timer"], "header": ["name"], "pages": 6, "missing": 2, "extra": 2, "zeros": 2,
        "unwritten": 0, "contents": 2, "places": outside,
    }  # fmt: skip
    assert len(both.pages(state(tmp_path / "c", {}))[0]) == 0


def test_the_fullest_moment_of_a_folder_is_seen(tmp_path: Path) -> None:
    with fullest(tmp_path / "work") as peak:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "pages").write_bytes(np.ones(1 << 20, dtype=np.uint8).tobytes())
    assert 1 << 20 <= peak.bytes < 2 << 20


def test_a_comparison_without_region_times_counts_for_state_and_pages() -> None:
    records = [row("lu", compared=against()), row("histogram", compared=against(()))]
    said = report.bars(records)
    assert any("2 of 2 programs; 2 of 10 measured" in one for one in said)
    assert any("median within" in one and "1 of 10 measured" in one for one in said)
    busy = row("fft")
    busy["seeds"] = {number: {**one, "untimed": True} for number, one in busy["seeds"].items()}
    assert report.stops_of(row("fft")) and report.stops_of(busy) == [] and "| - | - |" in report.tables([busy])
    assert not any("stop until" in one for one in report.bars([busy]))
    assert "T_ref" not in report.line(records[1]) and "| - | - | 5 |" in report.tables(records)


def test_tables_are_put_on_their_page(tmp_path: Path) -> None:
    records = [row("lu", compared=against()), built("long", 3.0)]
    page, once = page_with("figures.md", records, report.write, tmp_path)
    assert "| lu | 4 | equal |" in once and "- met: long program" in once
    report.write(page, [])
    assert page.read_text() == once


@pytest.mark.slow
def test_a_program_is_measured(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program of a second: directly and by CRIU. How long things take depends on the machine."""
    monkeypatch.setattr(measurement, "COMPARED", ("short",))
    monkeypatch.setattr(measurement, "probe_command", with_short(probe_command, 4))
    short = Benchmark("short", (str(build("sorter", builds)), "1"), "four ways to sort")
    told: list[str] = []
    found = measurement.measure_one(short, [3], data=tmp_path, folder=tmp_path, again=False, say=told.append)
    assert "failure" not in found and told == ["bench: short, seed 3"]
    one, state = found["seeds"]["3"], found["compared"]["state"]
    assert one["phases"] > 1 and one["left_out"] > 0 and one["asked_for"] == [] and one["whole"] == []
    assert all(0 < copied < stood and size > PAGE_SIZE for size, copied, stood in one["stops"])
    assert len(one["stops"]) == one["phases"] and one["room"]["peak"] > one["room"]["resident"] > PAGE_SIZE
    assert state["stops"] == one["phases"] and report.state_faults(found) == [], state
    assert len(found["compared"]["ratios"]) == one["phases"] and found["compared"]["prediction"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["short.json"]
    assert measurement.missing("short", [3], json.loads((tmp_path / "short.json").read_text())) == []


@pytest.mark.slow
def test_whole_builds_are_timed(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sorter = Scaled("short", "sorter", 1.0, few=(1, 2))
    short = Benchmark("short", (str(build("sorter", builds)), "1"), "four ways to sort")
    monkeypatch.setattr(Scaled, "benchmark", lambda *_: short)
    monkeypatch.setattr(lengths, "argument", lambda *_: 1)
    for module in (lengths, measurement):
        monkeypatch.setattr(module, "probe_command", with_short(probe_command, 4))
    told: list[str] = []
    (found,) = lengths.measure([sorter], data=tmp_path, folder=tmp_path, nine=False, say=told.append)
    assert "failure" not in found and told == ["bench: short, 1 s", "bench: short, again with --runs 0"]
    default, none = found["builds"]["default"], found["builds"]["none"]
    assert default["runs"] > 3 and none["times"] > 1 and len(found["full"]) == 3 and found["stops"]
    assert not lengths.due([sorter], tmp_path, False, False) and lengths.due([sorter], tmp_path, True, False)
    assert [path.name for path in tmp_path.iterdir()] == ["short.json"]
