# SPDX-License-Identifier: Apache-2.0
"""Figures of scaling, drawn from the store alone: pictures, their data, and the page in a browser."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import render
from click.testing import CliRunner
from made_probe import made_manifest, made_probe
from made_runs import made_runs
from published import schema_errors
from report_pages import pixels

from checkpoint.errors import Unpredictable
from probe.cli.main import cli
from probe.report.drawing import COLOURS
from probe.store.opening import Store, open_store
from probe.store.runs import store_runs

FUSION = """
name = "fusion"
[kernel.gem]
parameters = { steps = 1 }
work = "steps"
[kernel.ets]
work = "1"
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "fusion.toml").write_text(FUSION)
    with open_store(tmp_path / "store.db") as opened:
        for kernel in ("gem", "ets"):
            store_runs(opened, made_runs((1, 2, 4, 8), 2, 0.02, kernel=kernel, watts=14.35, wait=60.0))
            store_runs(opened, made_runs((1, 2, 4), kernel=kernel, node_type="sky <lake>", factor=0.6))
        store_runs(opened, made_runs((1, 2), node_type="zen"))
        yield opened


def test_every_figure_is_drawn_from_the_store(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    asked = ["scale", "plot", str(tmp_path / "fusion.toml"), "--figures", str(folder), "--store", str(store.path)]
    said = json.loads(CliRunner().invoke(cli, [*asked, "--json"], catch_exceptions=False).stdout)
    assert schema_errors("probe-scale-plot", said) == []
    names = {path.name for path in folder.iterdir()}
    fits = {f"fit-{kernel}-{kind}" for kernel in ("gem", "ets") for kind in ("haswell", "sky--lake-")}
    drawn = fits | {"strong-scaling", "kernels-haswell", "kernels-sky--lake-", "energy", "wait-and-run"}
    assert names == {f"{name}.{form}" for name in drawn for form in ("png", "csv")}
    assert {Path(name).name for name in said["files"]} == names
    assert all((folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in drawn)
    with (folder / "strong-scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["node_type"], row["cores"]) for row in rows} >= {("haswell", "16"), ("sky <lake>", "8")}
    assert all(float(row["low"]) <= float(row["seconds"]) <= float(row["high"]) for row in rows)
    with (folder / "energy.csv").open() as file:
        assert {row["source"] for row in csv.DictReader(file)} == {"accounting"}
    with (folder / "wait-and-run.csv").open() as file:
        assert {(row["node_type"], row["wait"]) for row in csv.DictReader(file)} == {("haswell", "60")}
    assert any("gem on zen" in reason for reason in said["refused"])


def test_pictures_as_svg_and_nothing_to_draw(store: Store, tmp_path: Path) -> None:
    asked = ["scale", "plot", str(tmp_path / "fusion.toml"), "--store", str(store.path)]
    folder = tmp_path / "figures"
    more = ["--figures", str(folder), "--form", "svg", "--cores", "4,8", "--wait", "sky <lake>=2m"]
    CliRunner().invoke(cli, [*asked, *more], catch_exceptions=False)
    assert b"<svg" in (folder / "energy.svg").read_bytes()
    with (folder / "wait-and-run.csv").open() as file:
        assert ("sky <lake>", "120") in {(row["node_type"], row["wait"]) for row in csv.DictReader(file)}
    assert CliRunner().invoke(cli, asked).exit_code == 2
    with open_store(tmp_path / "empty.db"):
        pass
    done = CliRunner().invoke(cli, [*asked[:-1], str(tmp_path / "empty.db"), "-o", str(tmp_path / "page.html")])
    assert isinstance(done.exception, Unpredictable) and not (tmp_path / "page.html").exists()


def test_the_page_in_a_browser(store: Store, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["scale", "plot", str(tmp_path / "fusion.toml"), "-o", str(page), "--store", str(store.path)]
    CliRunner().invoke(cli, asked, catch_exceptions=False)
    text = page.read_text()
    assert "sky &lt;lake&gt;" in text and "<lake>" not in text and text.count("<figure") == 9
    assert "seq(gem, ets)" in text and "Not predicted" in text
    seen = render(page, tmp_path, size=(1100, 6000))
    assert (seen.console, seen.requests) == ([], [])
    for colour in COLOURS[:2]:
        assert pixels(seen.picture, colour) > 200, colour


def test_scaling_inside_the_report_of_a_probe(store: Store, tmp_path: Path) -> None:
    """All figures of `probe scale plot` are in the page and the folder, beside the probe's own."""
    probe = made_probe(tmp_path / "gem.probe", *made_manifest(6, 200))
    asked = ["report", str(probe), "-o", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"), "-q"]
    CliRunner().invoke(cli, asked, catch_exceptions=False)
    own = {path.name for path in (tmp_path / "figures").iterdir()}
    assert 'id="scaling"' not in (tmp_path / "page.html").read_text()
    more = ["--scaling", str(tmp_path / "fusion.toml"), "--store", str(store.path)]
    said = json.loads(CliRunner().invoke(cli, [*asked, *more, "--json"], catch_exceptions=False).stdout)
    added = {Path(name).name for name in said["files"]} - own
    assert {
        "strong-scaling.png",
        "fit-gem-haswell.csv",
        "kernels-haswell.png",
        "energy.png",
        "wait-and-run.png",
    } < added
    text = (tmp_path / "page.html").read_text()
    assert "Scaling of fusion" in text and "sky &lt;lake&gt;" in text and "Not predicted" in text
    assert len([name for name in added if name.endswith(".png")]) == text.partition('id="scaling"')[2].count("<img")
    with pytest.raises(Unpredictable):
        (tmp_path / "other.toml").write_text('name = "other"\n[kernel.k]\nwork = "1"\n')
        CliRunner().invoke(
            cli, [*asked, "--scaling", str(tmp_path / "other.toml"), "--store", str(store.path)], catch_exceptions=False
        )
