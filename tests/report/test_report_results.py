# SPDX-License-Identifier: Apache-2.0
"""Results in a report: those of another probe refused, missing ones named, measured times beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from browser import render
from made_probe import changed, made_manifest, made_probe, made_result, without_times
from report_pages import FIGURES, made, own_fonts, rows, shown, written
from small_probe import ROOT, command, small_probe

from checkpoint.errors import NodeUnreachable, ProbeError, StorageError, StoreUnusable
from probe.candidates.remote import CandidateResult
from probe.cli.parameters import NodeSeconds
from probe.formats.manifest import Manifest
from probe.formats.phase_record import Times
from probe.report.gathering import gather
from probe.report.refusals import nodes_without, phases_left_out, warnings
from probe.report.results import read_results
from probe.report.trust import checks, headline
from probe.report.writing import write_report
from probe.slurm.engine import SlurmRun
from probe.store import find_node, find_probe, import_results, observe, open_store
from probe.store.importing import input_checksum
from probe.store.records import probe_key

__all__ = ["made", "own_fonts"]


def refused(probe: Path, result: Path, tmp_path: Path, status: int = 1) -> str:
    with pytest.raises(ProbeError) as caught:
        write_report(probe, [result], page=tmp_path / "none.html")
    assert caught.value.exit_code == status and not (tmp_path / "none.html").exists()
    return str(caught.value)


def test_results_of_another_probe_are_refused_by_id(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    other, _ = made_manifest(6, 240, timing__seconds=12.5)
    assert other.id != manifest.id and replace(manifest, phases=manifest.phases[:1]).id == manifest.id
    said = refused(probe, written(tmp_path, made_result(other, "n1")), tmp_path)
    assert "a result of another probe" in said and other.id in said and manifest.id in said
    of_several = {"candidates": [{"name": "n1", "result": made_result(manifest, "n1")}]}
    of_several["candidates"].append({"name": "n2", "result": made_result(other, "n2")})
    assert other.id in refused(probe, written(tmp_path, of_several), tmp_path)


def test_results_without_an_id_are_told_apart_by_their_shares(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    write_report(probe, [written(tmp_path, made_result(manifest, "n1", probe_id=None))], page=tmp_path / "report.html")
    for other in (made_manifest(6, 241)[0], made_manifest(6, 240, argv=("./solver", "--steps", "300"))[0]):
        said = refused(probe, written(tmp_path, made_result(other, "n1", probe_id=None)), tmp_path)
        assert "a result of another probe" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("7", "format_version: None"),
        ('{"format_version": 2}', "format_version: 2"),
        ('{"format_version": 1}', "not a whole result"),
        ('{"candidates": [7]}', "not a whole result"),
        ('{"candidates": [{"name": "n1"}]}', "not a whole result"),
    ],
)
def test_what_is_no_result(made: tuple[Path, Manifest], tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    assert said in refused(made[0], path, tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0, "x", None, {}, 10**400])
def test_numbers_that_are_none(made: tuple[Path, Manifest], tmp_path: Path, bad: Any) -> None:
    probe, manifest = made
    good = made_result(manifest, "n1")
    wrong = [{**good, "prediction": {**good["prediction"], "seconds": bad}}]
    if bad is not None:
        wrong.append({**good, "phases": [{**good["phases"][0], "t_cand": bad}]})
    for value in wrong:
        with pytest.raises(ProbeError, match=r"not a whole result|not JSON"):
            read_results([written(tmp_path, value)], manifest, str(probe))


def test_files_that_are_not_there(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    refused(made[0], tmp_path / "nothing.json", tmp_path, status=10)
    assert "not a probe file" in refused(written(tmp_path, {}, "x.probe"), made[0], tmp_path, status=11)
    with pytest.raises(StorageError, match="is a folder"):
        write_report(made[0], page=tmp_path)
    command("report", made[0], status=2)
    done = command("report", "-q", made[0], tmp_path / "nothing.json", "-o", tmp_path / "none.html", status=10)
    assert "nothing.json" in done.stderr


def test_missing_phases_and_nodes_are_named(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    lost = without_times(made_result(manifest, "n1"), [2, 4], "phase 2 was killed by SIGILL")
    fewer = made_result(manifest, "n2")
    fewer["phases"] = fewer["phases"][:3]
    more = made_result(manifest, "n3", 3.0)
    more["phases"] = [*more["phases"], {**more["phases"][0], "id": 99}]
    candidates = [{"name": "root@n1:22", "result": lost}, {"name": "n2", "result": fewer}]
    errors = [NodeUnreachable(f"dead{n}: no route to host") for n in range(7)]
    failed = [CandidateResult(f"dead{n}", None, error).to_json() for n, error in enumerate(errors)]
    jobs = SlurmRun({"n3": more}, {"n9": "job 7 was cancelled"}).to_json()
    files = [
        written(tmp_path, {"candidates": [*candidates, *failed]}, "on.json"),
        written(tmp_path, jobs, "slurm.json"),
        written(tmp_path, [made_result(manifest, "n2", 4.0)], "list.json"),
    ]
    found = gather(probe, files)
    assert [node.name for node in found.nodes] == ["root@n1:22", "n2", "n3", "n2 (2)"]
    assert [(r.what, r.why) for r in nodes_without(found)] == [
        ("dead0, dead1, dead2, dead3, dead4 and 2 others", "no route to host"),
        ("n9", "job 7 was cancelled"),
    ]
    left = {(r.what, r.why) for r in phases_left_out(found)}
    assert ("2 phases on root@n1:22", "not measured: phase 2 was killed by SIGILL") in left
    assert ("3 phases on n2", "not measured: the result has no time of them") in left
    assert any(what == "n3" and "no longer has" in why for what, why in left)
    write_report(probe, files, page=tmp_path / "report.html")
    text = shown(tmp_path / "report.html")
    assert "5 times of 24 are missing" in text and "killed by SIGILL" in text and "job 7 was cancelled" in text


def test_phases_of_the_probe_that_are_left_out(tmp_path: Path) -> None:
    manifest, table = made_manifest(
        5, 50, trimmed_from=8, selection__dropped_time_share=0.04, warnings=("mind the gap",)
    )
    gone = replace(manifest.phases[1], criu=Times(failure="it never stopped"))
    rooted = replace(manifest.phases[2], direct=Times(failure="it has a timer"))
    whole = changed(manifest.phases[3], checkpoint__whole="userfaultfd is refused")
    manifest = replace(manifest, phases=(manifest.phases[0], gone, rooted, whole, manifest.phases[4]))
    found = gather(made_probe(tmp_path / "a.probe", manifest, table), [])
    whys = " ".join(f"{r.what}: {r.why}" for r in phases_left_out(found))
    for said in ("it never stopped", "it has a timer", "userfaultfd is refused", "3 phases: taken out", "4.00"):
        assert said in whys
    assert [r.why for r in warnings(found)] == ["mind the gap"]
    assert "time covered" in headline(checks(found))
    write_report(tmp_path / "a.probe", page=tmp_path / "a.html", figures=tmp_path / "figures")


def test_measured_times(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    file = written(tmp_path, {"candidates": [{"name": "root@n1", "result": made_result(manifest, "n1", 2.0)}]})
    seconds = manifest.reference.seconds * 2
    out, figures = tmp_path / "report.html", tmp_path / "figures"
    command("report", "-q", probe, file, "-o", out, "--measured", f"n1={seconds * 1.1}s", "--figures", figures)
    assert "1 full run measured: 0 inside the interval" in shown(out)
    assert float(rows(figures / "predictions.csv")[1][6]) == pytest.approx(seconds * 1.1)
    write_report(probe, [file], page=out, measured={"root@n1": [seconds * 1.02]})
    assert "1 full run measured: 1 inside the interval" in shown(out)
    with pytest.raises(ProbeError, match="--measured n7: no result of this node; it has root@n1"):
        gather(probe, [file], measured={"n7": [1.0]})
    assert NodeSeconds().convert("a=b=1.5ms", None, None) == ("a=b", 0.0015)
    for wrong in ("n1", "n1=", "=5", "n1=0", "n1=soon"):
        with pytest.raises(click.UsageError):
            NodeSeconds().convert(wrong, None, None)


def test_measured_times_from_a_store(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    result, url = made_result(manifest, "n1", 2.0), str(tmp_path / "store.db")
    with open_store(url) as store:
        import_results(store, [result], inputs=input_checksum(probe), name="solver")
        import_results(store, [made_result(made_manifest(2, 9, argv=("./other",))[0], "n1")], name="other")
        for name, seconds in (("solver", 20.0), ("solver", 22.0), ("other", 1.0)):
            observe(store, find_probe(store, name), find_node(store, "n1"), seconds)
    found = gather(probe, [written(tmp_path, result)], measured={"n1": [21.0]}, store=url)
    assert found.measured == {"n1": (21.0, 20.0, 22.0)}
    with pytest.raises(StoreUnusable):
        gather(probe, [], store=str(tmp_path / "missing.db"))


@pytest.mark.parametrize(("clock", "found"), [("wall", (20.0, 22.0)), ("cpu", (22.0,))])
def test_times_of_threads_from_before_results_told_them(clock: str, found: tuple[float, ...], tmp_path: Path) -> None:
    """They are stored as of one thread, where the command with one thread is, too: by the CPU clock."""
    manifest, table = made_manifest(2, 9, threads=2, reference__clock="wall")
    probe, url = made_probe(tmp_path / "solver.probe", manifest, table), str(tmp_path / "store.db")
    result, before = made_result(manifest, "n1", clock="wall"), made_result(manifest, "n1", clock=clock)
    del before["threads"]
    with open_store(url) as store:
        import_results(store, [before, result])
        for seconds, threads in ((20.0, 1), (22.0, 2)):
            stored = find_probe(store, probe_key(manifest.program.argv, "", threads))
            observe(store, stored, find_node(store, "n1"), seconds)
    assert sorted(gather(probe, [written(tmp_path, result)], store=url).measured["n1"]) == list(found)


def test_standard_input_is_a_result(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe", "report", "-q", made[0], "-", "-o", tmp_path / "report.html"],
        input=json.dumps(made_result(made[1], "n1")), capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0 and "1 node" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_real_probe_and_its_result(builds: Path, tmp_path: Path) -> None:
    probe = small_probe(builds).path
    result = tmp_path / "here.json"
    result.write_text(command("run", "-q", "--repeat", "3", "--json", probe).stdout)
    said, made = json.loads(result.read_text()), made_result(made_manifest(2, 9)[0], "n1")
    for real, up in ((said, made), (said["phases"][0], made["phases"][0]), (said["variances"], made["variances"])):
        assert real.keys() == up.keys()
    command("report", "-q", probe, result, "-o", tmp_path / "report.html", "--figures", tmp_path / "figures")
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == FIGURES
    seen = render(tmp_path / "report.html", tmp_path)
    assert (seen.console, seen.requests) == ([], [])
    command("trim", probe, "-o", tmp_path / "one.probe", "--phases", "1")
    command("report", "-q", tmp_path / "one.probe", result, "-o", tmp_path / "one.html")
    assert "measured phases that this probe no longer has" in shown(tmp_path / "one.html")
