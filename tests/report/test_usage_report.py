# SPDX-License-Identifier: Apache-2.0
"""Resource profiles are drawn: over time, beside other profiles, and against emulations."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import render
from click.testing import CliRunner
from documentation import check_keys
from made_usage import made_usage
from report_pages import pixels

from checkpoint.errors import ProbeError, ProbeFileDamaged
from probe.cli.main import cli
from probe.emulation.usage import ProcessRow, save_usage
from probe.report.drawing import COLOURS
from probe.report.usage_report import write_usage_report


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    save_usage(made_usage(30, written=2e6), tmp_path / "sort.usage")
    return tmp_path / "sort.usage"


def emulation(**changes: Any) -> dict[str, Any]:
    totals = [
        {"name": "seconds", "unit": "s", "profiled": 1.5, "wanted": 1.5, "emulated": 1.2},
        {"name": "read", "unit": "B", "profiled": None, "wanted": 0.0, "emulated": 0.0},
        {"name": "written", "unit": "B", "profiled": 6e7, "wanted": 6e7, "emulated": 6e7},
    ]
    return {
        "format_version": 1, "method": "emulation", "program": ["./solver", "big"], "node": {"name": "n <2>"},
        "kernel": "matrix", "totals": totals, **changes,
    }  # fmt: skip


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_what_is_drawn(profile: Path, tmp_path: Path) -> None:
    save_usage(made_usage(20), tmp_path / "emulated.usage")
    there = {"candidates": [{"result": emulation()}, {"result": None}]}
    (tmp_path / "there.json").write_text(json.dumps(there))
    folder = tmp_path / "figures"
    asked = ["report", str(profile), str(tmp_path / "emulated.usage"), str(tmp_path / "there.json"), "--json"]
    done = CliRunner().invoke(cli, [*asked, "-q", "-o", str(tmp_path / "page.html"), "--figures", str(folder)])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    check_keys(said, "probe report --json")
    assert (said["nodes"], said["without_prediction"]) == (2, 1)
    cpu = rows(folder, "usage-cpu")
    assert {(row["profile"], row["column"]) for row in cpu} == {
        (name, column) for name in ("sort.usage", "emulated.usage") for column in ("cpu_user", "cpu_kernel")
    }
    # 40 ms of user code in samples of 50 ms.
    assert all(float(row["value"]) == pytest.approx(0.8) for row in cpu if row["column"] == "cpu_user")
    written = [float(row["value"]) for row in rows(folder, "usage-storage") if row["profile"] == "sort.usage"]
    assert max(written) == pytest.approx(40.0)
    (first, second) = rows(folder, "emulation")
    assert (first["emulation"], first["figure"], first["emulated"]) == ("n <2>, matrix", "seconds", "1.2")
    assert second["figure"] == "written"
    drawn = {path.stem for path in folder.glob("*.png")}
    assert drawn == {"usage-cpu", "usage-memory", "usage-storage", "emulation"}
    assert pixels(folder / "usage-cpu.png", COLOURS[0]) > 300
    page = (tmp_path / "page.html").read_text()
    assert "Not known: processes: no such column" in page
    assert "made without" in page and (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


def test_processes_are_rows(tmp_path: Path) -> None:
    usage = made_usage(30)
    many = tuple(ProcessRow(100 + n, f"child{n}", 0.01 * n, 0.01 * n + 0.3, float(n)) for n in range(50))
    save_usage(replace(usage, header=replace(usage.header, processes=many)), tmp_path / "a.usage")
    write_usage_report(tmp_path / "a.usage", page=tmp_path / "page.html", figures=tmp_path / "figures")
    assert [row["pid"] for row in rows(tmp_path / "figures", "usage-tree")] == [str(100 + n) for n in range(50)]
    assert pixels(tmp_path / "figures" / "usage-tree.png", COLOURS[0]) > 1000
    assert "10 with less CPU time are not drawn" in (tmp_path / "page.html").read_text()


def test_the_page_in_a_browser(profile: Path, tmp_path: Path) -> None:
    write_usage_report(profile, page=tmp_path / "page.html")
    shown = render(tmp_path / "page.html", tmp_path)
    assert "Processors in use" in shown.dom and shown.console == [] and shown.requests == []
    assert pixels(shown.picture, COLOURS[0]) > 300


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"program": ["other"]}, "emulates another command"),
        ({"method": "probe"}, "not what `probe emulate --json` prints"),
        ({"format_version": 9}, "not what `probe emulate --json` prints"),
        ({"totals": [{"name": "x"}]}, "not what `probe emulate --json` prints"),
        ({"totals": 5}, "not what `probe emulate --json` prints"),
        ({"node": 5}, "not what `probe emulate --json` prints"),
    ],
)
def test_what_is_no_emulation(profile: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (tmp_path / "there.json").write_text(json.dumps(emulation(**changes)))
    with pytest.raises(ProbeError, match=said):
        write_usage_report(profile, [tmp_path / "there.json"], page=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_text_of_others_is_text(tmp_path: Path) -> None:
    usage = made_usage(3)
    header = replace(usage.header, command=("<script>alert(1)</script>",), tags={"a": "<b>"})
    save_usage(replace(usage, header=header), tmp_path / "a.usage")
    write_usage_report(tmp_path / "a.usage", page=tmp_path / "page.html")
    assert "<script>" not in (tmp_path / "page.html").read_text() and "<b>" not in (tmp_path / "page.html").read_text()


def test_what_is_refused(profile: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(profile), "-o", str(tmp_path / "p.html"), "--measured", "n=5s"])
    assert done.exit_code == 2 and "are for probes, not for resource profiles" in done.output
    profile.write_bytes(b"nothing")
    with pytest.raises(ProbeFileDamaged):
        write_usage_report(profile, page=tmp_path / "page.html")
