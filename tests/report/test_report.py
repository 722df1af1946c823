# SPDX-License-Identifier: Apache-2.0
"""`probe report`: the page, rendered by a real browser, its figures and their data, and what it refuses."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from browser import render
from made_probe import made_manifest, made_probe, made_result, without_times
from small_probe import ROOT, command, small_probe

from checkpoint.errors import NodeUnreachable, ProbeError, ProbeFileDamaged, StorageError, StoreUnusable
from probe.candidates.remote import CandidateResult
from probe.cli.parameters import NodeSeconds
from probe.formats.manifest import Manifest
from probe.inspection.trimming import Tradeoff
from probe.prediction.variance import CAUSES
from probe.report.gathering import Gathered, _check_numbers, gather
from probe.report.refusals import nodes_without, phases_left_out, warnings
from probe.report.results import NodeResult, NodeWithout, read_results
from probe.report.trust import checks, headline
from probe.report.writing import write_report
from probe.slurm.engine import SlurmRun
from probe.store import find_node, find_probe, import_results, observe, open_store
from probe.store.importing import input_checksum

FIGURES = {
    "timeline", "vectors", "shares", "restore", "tradeoff", "predictions", "phase-times", "error-budget", "estimators",
}  # fmt: skip
HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</title><svg onload=alert(1)>",
    "$\\frac{1}{$ $x^$",
    "a\x00b\x1b[31mc\u202ed",
    "\udcff\udc80",
    "=cmd()",
    "-- --> ]]> &amp; {{ 7*7 }} {% raw %}",
    "名前",
)


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


@pytest.fixture(scope="module", autouse=True)
def own_fonts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where matplotlib keeps its list of fonts, which it asks for when it is imported: so not above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("fonts")))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A probe of six phases with its table of intervals, and its manifest."""
    manifest, table = made_manifest(6, 240)
    return made_probe(tmp_path_factory.mktemp("made") / "solver.probe", manifest, table), manifest


def written(folder: Path, value: Any, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value))
    return path


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(path: Path) -> str:
    """Text of a page, one space between words."""
    return " ".join(Tags(path.read_text()).text.split())


# -- the page


def test_what_a_reader_finds(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    results = [written(tmp_path, made_result(manifest, f"n{k}", 0.5 + k), f"{k}.json") for k in range(3)]
    measured = {"n1": [manifest.reference.seconds * 1.52], "n2": [manifest.reference.seconds * 4]}
    done = write_report(probe, results, page=tmp_path / "report.html", measured=measured)
    assert (done.nodes, done.without) == (3, 0)
    text = shown(tmp_path / "report.html")
    for said in (
        "How far to trust it", "./solver --steps 200", "Example CPU 1", manifest.id, "240, in 6 phases",
        "on the fastest of 3 nodes", "missed their time by 2.0 %", "measured runs in their intervals", "1 of 2",
    ):  # fmt: skip
        assert said in text, said
    assert "8 of 9 checks are as usual. Look first at: measured runs in their intervals." in text
    fastest = f"{manifest.reference.seconds * 0.5:.2f} s"
    assert text.count(fastest) >= 3
    tags = Tags((tmp_path / "report.html").read_text())
    pictures = [attributes["src"] for tag, attributes in tags.tags if tag == "img"]
    assert len(pictures) == len(FIGURES) and all(str(p).startswith("data:image/svg+xml;base64,") for p in pictures)
    assert {attributes.get("id") for tag, attributes in tags.tags if tag == "figure"} == FIGURES


def test_in_a_browser(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    result = written(tmp_path, made_result(manifest, "n1", 1.5))
    write_report(probe, [result], page=tmp_path / "report.html")
    seen = render(tmp_path / "report.html", tmp_path)
    assert (seen.console, seen.requests) == ([], [])
    assert {a.get("id") for tag, a in Tags(seen.dom).tags if tag == "figure"} == FIGURES
    # Pictures that a browser cannot read leave their places empty.
    for colour in COLOURS:
        assert pixels(seen.picture, colour) > 200, colour


def pixels(picture: Path, colour: str) -> int:
    from matplotlib.image import imread

    wanted = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)])
    return int((np.abs(np.round(imread(picture)[:, :, :3] * 255) - wanted) < 3).all(axis=2).sum())


def test_the_browser_notices_what_a_page_does(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.log('said')</script><img src='http://127.0.0.1:9/x.png'><p>no colour</p>")
    seen = render(bad, tmp_path, size=(400, 400))
    assert any("said" in line for line in seen.console) and seen.requests == ["http://127.0.0.1:9/x.png"]
    assert pixels(seen.picture, COLOURS[0]) == 0


def test_the_page_keeps_browsers_from_what_got_into_it(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    write_report(made[0], page=tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    planted = "<script>document.title = 'owned'</script><img src='http://127.0.0.1:9/x.png'><h1>"
    (tmp_path / "planted.html").write_text(text.replace("<h1>", planted))
    seen = render(tmp_path / "planted.html", tmp_path, size=(1100, 400))
    assert planted.split("<img")[0] in seen.dom and "<title>owned" not in seen.dom
    assert seen.requests == [] and len([line for line in seen.console if "Content Security Policy" in line]) == 2


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    manifest, table = made_manifest(6, 60, argv=("./solver", *HOSTILE), warnings=HOSTILE, executable=HOSTILE[0])
    probe = made_probe(tmp_path / "<b>x.probe", manifest, table)
    results = [
        without_times(made_result(manifest, name, 1.0 + n, warnings=[name]), [n % 6], name)
        for n, name in enumerate(HOSTILE)
    ]
    failed = [{"name": name, "reason": name, "result": None} for name in HOSTILE]
    candidates = [{"name": r["node"]["name"], "result": r} for r in results] + failed
    file = written(tmp_path, {"format_version": 1, "candidates": candidates})
    write_report(probe, [file], page=tmp_path / "report.html", figures=tmp_path / "figures")
    source = (tmp_path / "report.html").read_text()
    assert "{{ 7*7 }} {% raw %}" in source
    seen = render(tmp_path / "report.html", tmp_path)
    tags = Tags(seen.dom)
    assert not {tag for tag, _ in tags.tags} & {"script", "svg", "iframe", "object"}
    assert all(str(a["src"]).startswith("data:") for tag, a in tags.tags if tag == "img")
    assert not [a for _, a in tags.tags if any(name.startswith("on") for name in a)]
    assert (seen.console, seen.requests) == ([], [])
    assert "<script>document.title='owned'</script>" in tags.text and "<title>&lt;b&gt;x.probe" in seen.dom
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", source)
    for colour in COLOURS:
        assert pixels(seen.picture, colour) > 200, "a picture was spoilt"
    cells = [cell for file in (tmp_path / "figures").glob("*.csv") for row in rows(file) for cell in row]
    assert "'=cmd()" in cells and not [cell for cell in cells if cell.startswith("=")]


def test_without_results_or_intervals(tmp_path: Path) -> None:
    manifest, _ = made_manifest(4, 40, held_out_error=None)
    probe = made_probe(tmp_path / "old.probe", manifest)
    write_report(probe, page=tmp_path / "old.html", figures=tmp_path / "old")
    text = shown(tmp_path / "old.html")
    assert "This probe does not hold the intervals of the run" in text and "No results were given" in text
    assert (tmp_path / "old" / "timeline.png").exists() and not (tmp_path / "old" / "vectors.png").exists()
    later = made_probe(tmp_path / "later.probe", manifest, intervals=b"\x02\0\0\0" + bytes(12))
    write_report(later, page=tmp_path / "later.html")
    assert "or its table is of a later one" in shown(tmp_path / "later.html")


# -- many of everything


@pytest.fixture(scope="module")
def thousands() -> Gathered:
    """2,000 phases in 20,000 intervals, and 3,000 nodes with a time of each."""
    manifest, table = made_manifest(2000, 20_000)
    rng = np.random.default_rng(1)
    ref = np.array([p.cpu_run for p in manifest.phases])
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


def drawings(found: Gathered) -> list[Any]:
    from probe.report.node_figures import node_figures
    from probe.report.run_figures import run_figures

    return [*run_figures(found), *node_figures(found)]


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


# -- figures on their own


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_png_and_csv_need_neither_browser_nor_display(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    result = written(tmp_path, without_times(made_result(manifest, "n1", 2.0), [3], "killed"))
    bare = {
        "PYTHONPATH": str(ROOT),
        "PATH": "/nonexistent",
        "HOME": "/nonexistent",
        "PROBE_HOME": str(tmp_path / "home"),
    }
    bare["TMPDIR"] = os.environ["TMPDIR"]
    done = subprocess.run(
        [sys.executable, "-m", "probe", "report", "-q", probe, result, "--figures", tmp_path / "figures"],
        env=bare, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    files = {path.name for path in (tmp_path / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "csv")}
    for path in (tmp_path / "figures").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    predicted = rows(tmp_path / "figures" / "predictions.csv")
    assert predicted[0][:3] == ["node", "cpu", "predicted_s"]
    assert float(predicted[1][2]) == pytest.approx(2 * manifest.reference.seconds)
    times = {row[1]: row for row in rows(tmp_path / "figures" / "phase-times.csv")[1:]}
    assert times["3"][3:] == ["", "", "killed"]
    assert float(times["2"][4]) == pytest.approx(2.2)
    shares = rows(tmp_path / "figures" / "shares.csv")[1:]
    assert sum(float(row[2]) for row in shares) == pytest.approx(1.0)


def test_files_are_for_their_owner_alone(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("before")
    out.chmod(0o644)
    write_report(made[0], page=out, figures=tmp_path / "figures")
    paths = [out, tmp_path / "figures", *(tmp_path / "figures").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == {0}
    assert not [path for path in tmp_path.rglob("*.part")]


def test_no_style_of_the_users_has_a_say(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain", tmp_path / "odd"
    for folder in (plain, odd):
        folder.mkdir()
    (odd / "matplotlibrc").write_text("text.usetex: True\nsavefig.dpi: 10\nfont.size: 40\naxes.facecolor: black\n")
    for folder in (plain, odd):
        command("report", "-q", made[0], "--figures", "out", "-o", "page.html", cwd=folder)
    for name in ("out/shares.png", "out/timeline.png", "page.html"):
        assert (plain / name).read_bytes() == (odd / name).read_bytes(), name


# -- results


def refused(probe: Path, result: Path, tmp_path: Path, status: int = 1) -> str:
    with pytest.raises(ProbeError) as caught:
        write_report(probe, [result], page=tmp_path / "none.html")
    assert caught.value.exit_code == status and not (tmp_path / "none.html").exists()
    return str(caught.value)


def test_results_of_another_probe_are_refused_by_id(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    probe, manifest = made
    other, _ = made_manifest(6, 240, timing_seconds=12.5)
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
    changed = [{**good, "prediction": {**good["prediction"], "seconds": bad}}]
    if bad is not None:
        changed.append({**good, "phases": [{**good["phases"][0], "t_cand": bad}]})
    for value in changed:
        with pytest.raises(ProbeError, match="not a whole result"):
            read_results([written(tmp_path, value)], manifest, str(probe))


def test_files_that_are_not_there(made: tuple[Path, Manifest], tmp_path: Path) -> None:
    refused(made[0], tmp_path / "nothing.json", tmp_path, status=10)
    assert "not a probe file" in refused(written(tmp_path, {}, "x.probe"), made[0], tmp_path, status=11)
    with pytest.raises(StorageError, match="is a folder"):
        write_report(made[0], page=tmp_path)
    command("report", made[0], status=2)
    done = command("report", "-q", made[0], tmp_path / "nothing.json", "-o", tmp_path / "none.html", status=10)
    assert "nothing.json" in done.stderr


NONSENSE: list[dict[str, Any]] = [
    {"timing_seconds": math.nan},
    {"interval": 0},
    {"intervals": -1},
    {"timing_cpu_seconds": "x"},
    {"raw_bytes": None},
    {"reference": {"cpu": ()}},
    {"reference": {"cpu": (0.0, 1.0)}},
    {"phase": {"time_share": math.inf}},
    {"phase": {"id": 1}},
    {"phase": {"cpu_run": -1.0}},
    {"phase": {"cpu_ref": (1.0, -1.0)}},
    {"phase": {"weight": []}},
]


@pytest.mark.parametrize("change", NONSENSE, ids=str)
def test_a_manifest_of_nonsense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest, _ = made_manifest(3, 12)
    for name, value in change.items():
        if name == "phase":
            manifest = replace(manifest, phases=(replace(manifest.phases[0], **value), *manifest.phases[1:]))
        elif name == "reference":
            manifest = replace(manifest, reference=replace(manifest.reference, **value))
        else:
            manifest = replace(manifest, **change)
    with pytest.raises(ProbeFileDamaged, match=r"a\.probe: times or shares in its manifest are none"):
        _check_numbers(Manifest.from_json(manifest.to_json()), "a.probe")


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
    manifest, table = made_manifest(5, 50, trimmed_from=8, dropped_time_share=0.04, warnings=("mind the gap",))
    gone = replace(manifest.phases[1], t_ref=(), cpu_ref=(), failure="it never stopped")
    rooted = replace(manifest.phases[2], only_criu="it has a timer")
    whole = replace(manifest.phases[3], whole="userfaultfd is refused")
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
