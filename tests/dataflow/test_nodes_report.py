# SPDX-License-Identifier: Apache-2.0
"""`probe report` on what `probe simulate -P --json` printed."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from data_applications import TITAN, described, machine

from checkpoint.errors import ProbeError
from probe.cli.main import cli


def printed(*words: str) -> str:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False).stdout


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    """A prediction of an application whose name would be HTML."""
    data = str(described(tmp_path, TITAN, blocks=40, polar=0.2, name="<b>titan</b>"))
    path = tmp_path / "loose.json"
    path.write_text(printed("simulate", data, "--machine", str(machine(tmp_path)), "-P", "2..8", "-q", "--json"))
    return path


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.cells.append(data)


def test_time_and_busy_shares_are_drawn_and_listed(predicted: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    changed = json.loads(predicted.read_text())
    changed["rows"][0] |= {"low": 1.0, "high": 2.0}
    other.write_text(json.dumps(changed))
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    words = ("report", str(predicted), str(other), "-o", str(page), "--figures", str(figures), "-q")
    assert "3 nodes" in printed(*words)
    shown = _Page(page.read_text())
    assert shown.tags.count("img") == 2 and "b" not in shown.tags
    rows = json.loads(predicted.read_text())["rows"]
    for row in rows:
        assert f"{row['seconds']:.4g}" in shown.cells
        assert f"{100 * row['busy']['busiest_processor']:.0f} %" in shown.cells
    assert "1 to 2" in shown.cells
    table = (figures / "nodes.csv").read_text().splitlines()
    assert table[0] == "nodes,seconds,low,high,disk,bus,sending,receiving,processor,busiest processor"
    assert [float(line.split(",")[1]) for line in table[1:]] == pytest.approx([row["seconds"] for row in rows])
    for name in ("nodes.png", "nodes-2.png", "nodes-2.csv"):
        assert (figures / name).stat().st_size > 100, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "not what `probe simulate -P --json` prints"),
        ({"rows": [{"nodes": 2}]}, "simulate again"),
        ({"block_seconds": "x"}, "'x' is no number"),
        ({"application": None, "rows": None}, "simulate again"),
    ],
)
def test_other_files_are_refused(predicted: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    predicted.write_text(json.dumps(json.loads(predicted.read_text()) | change))
    with pytest.raises(ProbeError, match=message):
        printed("report", str(predicted), "-o", str(tmp_path / "page.html"), "-q")
    predicted.write_text("{")
    with pytest.raises(ProbeError, match=r"not JSON .*give the file that `probe simulate -P --json` printed"):
        printed("report", str(predicted), "-o", str(tmp_path / "page.html"), "-q")
    assert not (tmp_path / "page.html").exists()


def test_options_of_probes_are_refused(predicted: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(predicted), "-o", str(tmp_path / "p.html"), "--measured", "n=2s"])
    assert done.exit_code == 2 and "are for probes, not for numbers of nodes" in " ".join(done.output.split())
