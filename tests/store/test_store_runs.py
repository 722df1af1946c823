# SPDX-License-Identifier: Apache-2.0
"""Runs of parallel kernels in the store: there once, as they came; imported from JSON and ReFrame's logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_runs import made_runs
from published import schema_errors
from stores import server, store, url

from checkpoint.errors import ProbeError
from probe.cli.main import cli
from probe.scaling.importing import Origin, runs_of_reframe
from probe.store.opening import Store
from probe.store.parallel_run import runs_from_json
from probe.store.runs import set_power, store_runs, stored_power, stored_runs

__all__ = ["server", "store", "url"]

FUSION = """
name = "fusion"
[kernel.gem]
parameters = { steps = 1 }
work = "steps"
"""
HEAD = "result|job_completion_time|version|system|partition|num_tasks|num_cpus_per_task|num_tasks_per_node|"
HEAD += "elapsed_value|elapsed_unit|elapsed_ref|mpi_value|mpi_unit|"


def log(*lines: str) -> str:
    return "\n".join([HEAD, *lines, ""])


def line(tasks: int, seconds: str, *, result: str = "pass", at: str = "2026-11-20T10:00:00+00:00") -> str:
    return f"{result}|{at}|4.6|eagle|haswell|{tasks}|null|2|{seconds}|s|0|500|ms|"


def test_runs_are_stored_once_and_as_they_came(store: Store) -> None:
    given = made_runs((1, 2, 4), watts=10.0, notes={"job": "17"}, parameters={"nx": 128.0}, wait=3.5, benchmark=True)
    assert store_runs(store, given) == 3
    assert store_runs(store, [*given, *made_runs((8,), kernel="ets")]) == 1
    assert stored_runs(store, app="fusion", kernel="gem", node_type="haswell") == given
    assert len(stored_runs(store)) == 4 and stored_runs(store, kernel="none") == []
    assert store_runs(store, []) == 0


def test_power_on_each_kind_of_database(store: Store) -> None:
    set_power(store, "haswell", 24, [(0, 100), (0.5, 200), (1, 300)], "published")
    (found,) = stored_power(store)
    assert found.points == ((0, 100), (0.5, 200), (1, 300)) and found.cores == 24


def test_json_goes_out_and_in(tmp_path: Path) -> None:
    first, second = tmp_path / "a.db", tmp_path / "b.db"
    from probe.store.opening import open_store

    with open_store(first) as opened:
        store_runs(opened, made_runs((1, 2, 4), watts=9.0, parameters={"nx": 3.0}))
        before = stored_runs(opened)
    run = CliRunner().invoke
    printed = run(cli, ["store", "runs", "--json", "--store", str(first)], catch_exceptions=False).stdout
    assert schema_errors("probe-store-runs", json.loads(printed)) == []
    (tmp_path / "runs.json").write_text(printed)
    for stored, known in ((3, 0), (0, 3)):
        command = ["store", "import-runs", str(tmp_path / "runs.json"), "--json", "--store", str(second)]
        said = json.loads(run(cli, command, catch_exceptions=False).stdout)
        assert schema_errors("probe-store-import-runs", said) == []
        assert (said["stored"], said["known"]) == (stored, known)
    with open_store(second) as opened:
        assert stored_runs(opened) == before
    table = run(cli, ["store", "runs", "--store", str(second)], catch_exceptions=False).stdout
    assert "fusion.gem" in table and "4 x 1" in table


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    (tmp_path / "fusion.toml").write_text(FUSION)
    return Origin.of(tmp_path / "fusion.toml", "gem", {"steps": 4.0})


def test_logs_of_reframe(tmp_path: Path, origin: Origin) -> None:
    path = tmp_path / "gem.log"
    # The head is there again where the format has changed.
    path.write_text(log(line(4, "12.5"), line(8, "7"), HEAD, line(8, "7.25"), line(4, "1", result="fail")))
    found, left_out = runs_of_reframe(path, origin, "elapsed", "mpi")
    assert [(run.cores, run.nodes, run.runtime, run.mpi) for run in found] == [
        (4, 2, 12.5, 0.5), (8, 4, 7, 0.5), (8, 4, 7.25, 0.5),
    ]  # fmt: skip
    assert {run.node_type for run in found} == {"eagle:haswell"} and found[0].work == 4
    assert left_out == {"not passed": 1}
    assert [run.source for run in runs_of_reframe(path, origin, "elapsed")[0]] == [run.source for run in found]


def test_logs_of_reframe_with_commas_and_missing_fields(tmp_path: Path, origin: Origin) -> None:
    path = tmp_path / "gem.log"
    rows = log(line(4, "12.5"), line(4, ""), line(4, "nan"), line(4, "-1"), line(4, "3", at="yesterday"), "pass|x")
    path.write_text(rows.replace("|", ","))
    found, left_out = runs_of_reframe(path, origin, "elapsed")
    assert len(found) == 1 and sum(left_out.values()) == 5
    assert left_out["fields are missing, or are no numbers"] == 3


def test_a_log_whose_line_is_cut(tmp_path: Path, origin: Origin) -> None:
    path = tmp_path / "gem.log"
    head = "result|job_completion_time|num_tasks|elapsed_value|elapsed_unit|system|partition|"
    row = "pass|2026-11-20T10:00:00+00:00|4|12.5|s|eagle|haswell|"
    path.write_text(f"{head}\n{row}\n{row[: row.index('haswell') - 1]}\n")
    found, left_out = runs_of_reframe(path, origin, "elapsed")
    assert len(found) == 1 and left_out == {"fields are missing, or are no numbers": 1}


@pytest.mark.parametrize("text", ["", "\0", "a|b\n1|2\n", log().replace("num_tasks|", "tasks|"), "x" * 200_000])
def test_what_is_no_log(tmp_path: Path, origin: Origin, text: str) -> None:
    path = tmp_path / "gem.log"
    path.write_text(text)
    if text:
        with pytest.raises(ProbeError):
            runs_of_reframe(path, origin, "elapsed")
    else:
        assert runs_of_reframe(path, origin, "elapsed") == ([], {})


def test_import_of_reframe_by_command(tmp_path: Path, origin: Origin) -> None:
    (tmp_path / "gem.log").write_text(log(line(4, "12.5"), line(8, "7", result="fail")))
    command = ["store", "import-runs", str(tmp_path / "gem.log"), "--from", "reframe", "--kernel", "gem"]
    command += ["--application", str(tmp_path / "fusion.toml"), "--store", str(tmp_path / "store.db")]
    assert CliRunner().invoke(cli, command).exit_code == 2
    done: Any = CliRunner().invoke(cli, [*command, "--time", "elapsed"], catch_exceptions=False)
    assert done.stdout == "1 runs stored, 0 were there already; 1 lines left out: not passed\n"


@pytest.mark.parametrize("field", ["work", "runtime"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_runs_without_work_or_time_are_refused(field: str, value: float) -> None:
    """Times are divided by work, and errors by times."""
    said = {**made_runs((2,))[0].to_json(), "mpi": 0.0, field: value}
    with pytest.raises(ProbeError, match=f"run 1: {field} = .* must be above 0"):
        runs_from_json({"format_version": 1, "runs": [said]})
