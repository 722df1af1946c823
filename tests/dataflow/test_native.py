# SPDX-License-Identifier: Apache-2.0
"""The application for real on two ranks of MPI, beside both engines on the machine that it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from data_applications import MICROSCOPE, TITAN, described
from documentation import check_keys

from checkpoint.errors import ModelInvalid, NodeUnfit, ProgramFailed, StorageError, ToolMissing
from probe.cli.main import cli
from probe.dataflow import emulating
from probe.dataflow.application import read_data_application
from probe.dataflow.emulating import emulate_data
from probe.dataflow.engines import MODES, engine_of, simulate
from probe.dataflow.machine import read_disk_machine
from probe.dataflow.prediction import BlockTime
from probe.dataflow.work import place

SMALL: dict[str, Any] = {"block_bytes": 5e4, "polar": 0.2, "extent": [30.0, 10.0], "compute": 0.01}


COMPUTED_FIRST = {
    "operations": {"r": "read", "a": "compute", "b": "compute", "s": "send", "g": "receive", "c": "compute"},
    "edges": ["r -> a", "a -> s", "s -> g", "g -> c", "r -> b"],
}
PASSED_ON = {
    "operations": {"r": "read", "s": "send", "g": "receive", "t": "send", "h": "receive", "c": "compute"},
    "edges": ["r -> s", "s -> g", "g -> t", "t -> h", "h -> c"],
}


@pytest.mark.parametrize(
    ("base", "changed"),
    [
        (TITAN, {**SMALL, "blocks": 60, "grid": [2, 1], "family": "graph", "graph": COMPUTED_FIRST}),
        (TITAN, {**SMALL, "blocks": 60, "grid": [2, 1], "family": "graph", "graph": PASSED_ON, "block_bytes": 30.0}),
        (TITAN, {**SMALL, "blocks": 150, "grid": [2, 1]}),
        (MICROSCOPE, {"compute": 0.01, "block_bytes": 5e4, "queries": 20}),
        (TITAN, {**SMALL, "family": "pathfinder", "compute_per_io": 1, "blocks": 100}),
    ],
)
def test_two_ranks_do_what_both_engines_say(tmp_path: Path, base: dict[str, Any], changed: dict[str, Any]) -> None:
    path, here = described(tmp_path, base, **changed), tmp_path / "here.toml"
    words = ["emulate", str(path), "--ranks", "2", "--folder", str(tmp_path), "--machine", str(here), "-q"]
    done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    check_keys(said, "probe emulate --ranks --json")
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == [], "files of blocks are gone"
    application = read_data_application(path)
    work = place(application, read_disk_machine(here), 2)
    simulated = [simulate(work, 0.01, engine_of(mode), limit=60) for mode in MODES]
    for found in simulated:
        # What goes to clients is not sent here.
        messages = 0 if base is MICROSCOPE else found.messages
        assert (said["blocks"], said["messages"]) == (found.blocks, messages)
    # Delays are no shorter than asked for, whatever else runs; how much longer, the benchmark says. On a quiet machine
    # the ranks wait for each other less than the engine does that couples them tightly.
    assert said["seconds"] > 0.97 * min(found.seconds for found in simulated)
    assert said["computing_seconds"] <= said["seconds"]


def test_one_rank_of_several_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    application = read_data_application(described(tmp_path, TITAN, **{**SMALL, "blocks": 20, "compute": 0.0}))
    found = emulate_data(application, 1, folder=Path(), time=BlockTime(0, 0, 0, "given"), disks=3)
    assert (found.blocks, found.messages, found.disks) == (20, 0, 3)
    text = found.machine_text("here")
    (tmp_path / "m.toml").write_text(text)
    assert read_disk_machine(tmp_path / "m.toml").disks == 3


def test_what_cannot_be_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = read_data_application(described(tmp_path, TITAN))
    given = BlockTime(0.1, 0.1, 0.1, "given")
    with pytest.raises(NodeUnfit, match=r"4000 ranks compute on \d+ processors"):
        emulate_data(application, 4000, folder=tmp_path, time=given)
    with pytest.raises(StorageError, match="give another --folder"):
        emulate_data(application, 1, folder=tmp_path / "none", time=given)
    large = read_data_application(described(tmp_path, TITAN, blocks=1 << 30, block_bytes=1e6))
    with pytest.raises(StorageError, match=r"1 files of \d+ bytes do not fit into \d+; give another --folder"):
        emulate_data(large, 1, folder=tmp_path, time=given)
    wide = read_data_application(described(tmp_path, TITAN, block_bytes=3e9))
    with pytest.raises(ModelInvalid, match="blocks of more than 2147483647 bytes are no messages of MPI"):
        emulate_data(wide, 1, folder=tmp_path, time=given)
    long = read_data_application(described(tmp_path, TITAN, blocks=20, block_bytes=1e4))
    with pytest.raises(ProgramFailed, match="the emulation was not over after 1 s"):
        emulate_data(long, 1, folder=tmp_path, time=BlockTime(5.0, 5.0, 5.0, "given"), limit=1.0)
    # procfs, for one, opens nothing directly; so an engine that says so stands for it.
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'opening a file for direct reads: Invalid argument'\nexit 4\n")
    program.chmod(0o755)
    monkeypatch.setattr(emulating, "_mpirun", lambda: str(program))
    with pytest.raises(StorageError, match="its file system has no direct reads"):
        emulate_data(long, 1, folder=tmp_path, time=given)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ToolMissing, match="no MPI compiler"):
        emulate_data(long, 1, folder=tmp_path, time=given)


def test_wrong_calls(tmp_path: Path) -> None:
    data = str(described(tmp_path, TITAN))
    for words, message in (
        ([data], "Missing option '--ranks'"),
        ([data, "--ranks", "1", "--threads", "2"], "--threads is not of an application of blocks"),
        (["a.usage", "--disks", "2"], "--disks is of an application of blocks alone"),
        (["a.usage", "--probe", "a=2"], "--probe is of an application of blocks alone"),
    ):
        done = CliRunner().invoke(cli, ["emulate", *words])
        assert done.exit_code == 2 and message in " ".join(done.output.split()), done.output
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.toml"]
