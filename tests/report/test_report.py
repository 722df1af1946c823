# SPDX-License-Identifier: Apache-2.0
"""`probe report`: the page, rendered by a real browser, and its figures on their own."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from browser import render
from made_probe import made_manifest, made_probe, made_result, without_times
from report_pages import COLOURS, FIGURES, Tags, made, own_fonts, pixels, rows, shown, written
from small_probe import ROOT, command

from probe.formats.manifest import Manifest
from probe.report.writing import write_report

__all__ = ["made", "own_fonts"]

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
    # No command line holds NUL: manifests that say so are refused.
    texts = tuple(text.replace("\0", "") for text in HOSTILE)
    manifest, table = made_manifest(
        6, 60, argv=("./solver", *texts), warnings=texts, program__executable=f"/{texts[0]}"
    )
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
    manifest, _ = made_manifest(4, 40, selection__held_out_error=None)
    probe = made_probe(tmp_path / "old.probe", manifest)
    write_report(probe, page=tmp_path / "old.html", figures=tmp_path / "old")
    text = shown(tmp_path / "old.html")
    assert "This probe does not hold the intervals of the run" in text and "No results were given" in text
    assert (tmp_path / "old" / "timeline.png").exists() and not (tmp_path / "old" / "vectors.png").exists()
    later = made_probe(tmp_path / "later.probe", manifest, intervals=b"\x02\0\0\0" + bytes(12))
    write_report(later, page=tmp_path / "later.html")
    assert "or its table is of a later one" in shown(tmp_path / "later.html")


# -- figures on their own


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
