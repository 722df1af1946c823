# SPDX-License-Identifier: Apache-2.0
"""Output that other tools read: `--json`, standard output alone, for whoever may read the probe."""

from __future__ import annotations

import re
import stat
import statistics
from pathlib import Path
from typing import Any

import pytest
from command import Command
from conftest import Sample

NUMBER = (int, float)
DESCRIPTION = {
    "program": list,
    "et_ref_seconds": float,
    "size_bytes": int,
    "raw_bytes": int,
    "phases": list,
    "errors": dict,
    "noise": float,
    "cpu_features": list,
    "format_version": int,
}
RESULT = {"prediction": dict, "estimators": dict, "node": dict, "phases": list, "warnings": list}


def typed(value: dict[str, Any], keys: dict[str, Any]) -> None:
    assert keys.keys() <= value.keys()
    assert {k: value[k] for k, kind in keys.items() if not isinstance(value[k], kind)} == {}


def test_show_has_the_promised_keys(sample: Sample, command: Command) -> None:
    shown = command.json("show", sample.path)
    typed(shown, DESCRIPTION)
    typed(shown["errors"], {"selection": NUMBER, "restore": NUMBER})
    assert shown["program"] == sample.argv
    assert shown["size_bytes"] == sample.path.stat().st_size
    assert 0.05 < shown["et_ref_seconds"] < 10 and 0.5 < shown["noise"] < 2
    assert shown["phases"] and 1 <= len(shown["phases"]) <= 4
    for phase in shown["phases"]:
        typed(phase, {"id": int, "weight": NUMBER, "time_share": NUMBER, "t_ref": NUMBER, "restore_error": NUMBER})
        assert phase["status"] == "ok"
    # How large errors are depends on what else the machine does: both times are of 20 ms, seconds apart.
    errors = [abs(p["restore_error"]) for p in shown["phases"]]
    assert shown["errors"]["restore"] == pytest.approx(statistics.median(errors))
    assert sum(p["weight"] for p in shown["phases"]) == pytest.approx(1, abs=0.02)
    assert sum(p["time_share"] for p in shown["phases"]) == pytest.approx(1, abs=0.02)
    assert {(f["path"], f["purpose"]) for f in shown["files"]} >= {(sample.argv[0], "program")}


def test_build_describes_what_it_wrote(sample: Sample, command: Command) -> None:
    assert sample.described == command.json("show", sample.path)
    assert stat.S_IMODE(sample.path.stat().st_mode) == 0o600


@pytest.mark.timed
def test_run_has_the_promised_keys(sample: Sample, command: Command) -> None:
    result = command.json("run", "--repeat", "3", sample.path)
    typed(result, RESULT)
    prediction = result["prediction"]
    assert prediction.keys() == {"seconds", "low", "high", "coverage"}
    assert result["estimators"].keys() == {"calibrated", "combined", "direct", "strube"}
    assert prediction["seconds"] == result["estimators"]["combined"]
    assert 0 < prediction["low"] < prediction["seconds"] < prediction["high"]
    assert 0.9 <= prediction["coverage"] <= 1.001
    assert 0.6 < prediction["seconds"] / sample.described["et_ref_seconds"] < 1.6
    for phase in result["phases"]:
        typed(phase, {"id": int, "weight": NUMBER, "time_share": NUMBER, "t_ref": NUMBER, "t_cand": NUMBER})
        # Repeats that other work disturbed are made again, and count where too few others are left.
        assert phase["status"] == "ok" and 3 <= len(phase["repeats"]) <= 7
    assert {p["id"] for p in result["phases"]} == {p["id"] for p in sample.described["phases"]}
    assert all(isinstance(w, str) for w in result["warnings"])


def test_people_get_a_number_with_its_interval(sample: Sample, command: Command) -> None:
    done = command("run", "--repeat", "3", "-q", sample.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"predicted: \d\.\d", done.stdout) and "95 % interval" in done.stdout
    shown = command("show", sample.path)
    assert shown.returncode == 0
    for word in ("ET_ref", "restore", "noise", "CPU features", sample.argv[0], "library"):
        assert word in shown.stdout


def test_anybody_who_may_read_a_probe_can_show_it(sample: Sample, command: Command, open_folder: Path) -> None:
    public = open_folder / "public.probe"
    public.write_bytes(sample.path.read_bytes())
    public.chmod(0o644)
    done = command("show", public, nobody=True)
    assert done.returncode == 0, done.stderr
    public.chmod(0o600)
    said = command.refused(10, "show", public, nobody=True)
    assert str(public) in said and "Permission denied" in said
