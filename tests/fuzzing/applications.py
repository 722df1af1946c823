# SPDX-License-Identifier: Apache-2.0
"""Readers of parallel applications: descriptions, runs as JSON, performance logs of ReFrame, sacct's lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_runs import made_runs

from checkpoint import strict_json
from checkpoint.errors import ProbeError
from fuzzing.mutation import forged_json
from fuzzing.reader import Reader
from probe.applications.application import read_application
from probe.applications.inputs import configuration
from probe.scaling.importing import Origin, runs_of_json, runs_of_reframe
from probe.slurm.run_accounting import runs_of_lines

_DESCRIPTION = b"""
name = "fusion"
[kernel.gem]
command = "gem {input} --depth=4"
input = "gem.in"
hash = []
work = "nx*(stop-start+1)**2 + log2(depth)"
threads = 2
[kernel.gem.parameters]
nx = 32
start = 0
stop = 3
depth = { argv = "--depth" }
[kernel.ets]
work = "2"
[compose]
graph = "loop(3, ets, par(gem))"
nodes = "shared"
"""
_HEAD = "result|job_completion_time|system|partition|num_tasks|elapsed_value|elapsed_unit|\n"
_LINE = "pass|2026-11-20T10:00:00+00:00|eagle|haswell|4|12.5|s|\n"
_SACCT = b"7|c|fusion.ets|main|2|8|COMPLETED|100|110|210|5000|a|b steps=4|\n8|c|fusion.gem|main|2|8|FAILED|1|2|3||\n"


def _descriptions(_folder: Path) -> Sequence[bytes]:
    return [_DESCRIPTION]


def _describe(data: bytes, folder: Path) -> Any:
    (folder / "a.toml").write_bytes(data)
    application = read_application(folder / "a.toml")
    for kernel in application.kernels.values():
        found = configuration(application, kernel)
        assert found.work > 0
        kernel.words(found.parameters, 4)
    return None


def _runs(_folder: Path) -> Sequence[bytes]:
    runs = made_runs((1, 2), watts=5.0, parameters={"nx": 3.0}, notes={"a": "b"})
    return [json.dumps({"format_version": 1, "runs": [run.to_json() for run in runs]}).encode()]


def _read_runs(data: bytes, folder: Path) -> Any:
    (folder / "a.json").write_bytes(data)
    for run in runs_of_json(folder / "a.json"):
        strict_json.dumps(run.to_json())
    return None


def _origin(folder: Path) -> Origin:
    (folder / "a.toml").write_bytes(_DESCRIPTION)
    return Origin.of(folder / "a.toml", "ets", {})


def _read_log(data: bytes, folder: Path) -> Any:
    (folder / "a.log").write_bytes(data)
    found, _ = runs_of_reframe(folder / "a.log", _origin(folder), "elapsed")
    assert all(run.runtime > 0 for run in found)
    return None


def _read_jobs(data: bytes, folder: Path) -> Any:
    lines = data.decode(errors="replace").splitlines()
    assert all(run.runtime > 0 for run in runs_of_lines(lines, _origin(folder).application, {}).runs)
    return None


READERS = (
    Reader("application", _descriptions, _describe, (ProbeError,)),
    Reader("runs", _runs, _read_runs, (ProbeError,), change=forged_json),
    Reader("reframe", lambda _: [(_HEAD + 3 * _LINE).encode()], _read_log, (ProbeError,)),
    Reader("sacct", lambda _: [_SACCT], _read_jobs, (ProbeError,)),
)
