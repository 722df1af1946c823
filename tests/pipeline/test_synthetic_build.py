# SPDX-License-Identifier: Apache-2.0
"""`probe build --synthetic-data` end to end: secrets in arrays are gone, those in files are named, all else works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build
from small_probe import ROOT, command

from probe.flow.stored import FLOW_NAME
from reducer.unpack import open_probe

pytestmark = pytest.mark.slow(minutes=1)

SECRET_TEXT = b"the words in the input file, kept whole"


def secret_numbers() -> bytes:
    """The first numbers of the array that `arrays roots` reads and never writes."""
    state, found = 1, []
    for _ in range(16):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append(1.0 + (state >> 11) / 2**53)
    return np.array(found).tobytes()


class Built:
    """One run of a program, packed with its own data and without."""

    def __init__(self, builds: Path, folder: Path) -> None:
        self.folder, self.stdin = folder, folder / "input.dat"
        self.stdin.write_bytes(SECRET_TEXT * 100)
        self.program = ("--", str(build("arrays", builds)), "roots", "300")
        self.real = self.made("real.probe", "--flow")
        self.synthetic = self.made("synthetic.probe", "--resume", "--synthetic-data", "--synthetic-budget", "100")

    def made(self, name: str, *options: str) -> Path:
        given = ("--work", self.folder / "work", "--capture", "direct", "--interval", "10ms", "--max-phases", "1")
        arguments = ["build", "-q", "-o", self.folder / name, *given, "--stdin", self.stdin, *options, *self.program]
        # Every step wakes this process: on a machine with other work that takes its time.
        done = subprocess.run(
            [sys.executable, "-m", "probe", *map(str, arguments)], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=900, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return self.folder / name


TRIES = 4
"""Builds at most, while the machine is too busy for one: refused then is the phase, and not what is tested here."""


@pytest.fixture(scope="module")
def built(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    for _ in range(TRIES):
        made = Built(builds, tmp_path_factory.mktemp("synthetic"))
        refused = [phase["synthetic"]["refused"] for phase in described(made.synthetic)["phases"]]
        if not any("build it while the machine does less" in why for why in refused):
            break
    return made


def described(probe: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command("show", "--json", probe).stdout)
    return found


def holds(probe: Path, secret: bytes) -> bool:
    """Whether any page of the probe holds it."""
    with open_probe(probe) as archive:
        return any(secret in bytes(page) for phase in archive.phases for page in archive.own_pages(phase.id))


def carries_flow(probe: Path) -> bool:
    """Whether `probe check` can compare with it. A probe that kept all its data has no use for it unasked."""
    with open_probe(probe) as archive:
        return FLOW_NAME in archive.data_names


def test_a_secret_in_an_array_is_not_in_the_probe(built: Built) -> None:
    assert holds(built.real, secret_numbers())
    assert not holds(built.synthetic, secret_numbers())
    assert not holds(built.synthetic, secret_numbers()[:8])
    assert built.synthetic.stat().st_size < built.real.stat().st_size


def test_a_secret_in_an_input_file_is_reported_as_kept(built: Built) -> None:
    files = {file["path"]: file for file in described(built.synthetic)["files"]}
    assert files[str(built.stdin)]["size"] == len(SECRET_TEXT) * 100
    shown = command("show", built.synthetic).stdout
    assert "of the memory is the program's own (" in shown and "so are stack, registers, program and files" in shown
    assert str(built.stdin) in shown


def test_every_phase_was_proved_at_full_length(built: Built) -> None:
    before, after = described(built.real), described(built.synthetic)
    assert (before["data"], before["real_share"], before["memory"]) == ("real", 1.0, [])
    assert after["data"] == "partly synthetic" and after["real_share"] < 0.3
    assert {"[stack]", "[anonymous]"} <= {one["name"] for one in after["memory"]}
    proofs: Sequence[dict[str, Any]] = [p["synthetic"] for p in after["phases"] if not p["synthetic"]["refused"]]
    assert proofs
    for proof in proofs:
        assert proof["points"] >= 20 and proof["address_steps"] >= 200_000 and proof["unknown_steps"] == 0
        assert proof["executions"] > 0 and proof["trials"] > 0 and proof["time_ratio"] > 0


def test_the_probe_runs_and_executes_what_the_program_did(built: Built) -> None:
    said = json.loads(command("check", "-q", "--json", built.synthetic).stdout)
    assert said["same"] and all(phase["status"] == "same" for phase in said["phases"])
    result = json.loads(command("run", "-q", "--repeat", "2", "--json", built.synthetic).stdout)
    assert result["prediction"]["seconds"] > 0


def test_a_build_goes_on_behind_it_and_before_it(built: Built) -> None:
    """Kept in the work folder; without the option the phases have their own data again."""
    again = built.made("again.probe", "--resume", "--synthetic-data", "--synthetic-budget", "100")
    assert not holds(again, secret_numbers())
    probe = built.made("nothing.probe", "--resume", "--synthetic-data", "--synthetic-budget", "0")
    nothing = described(probe)
    assert not carries_flow(probe) and carries_flow(again)
    assert nothing["data"] == "real"
    assert {p["synthetic"]["refused"] for p in nothing["phases"]} == {
        "the time for it (--synthetic-budget) was used up by larger phases"
    }


def test_a_budget_of_nothing_else_is_refused(built: Built) -> None:
    said = command(
        "build", "-q", "-o", built.folder / "x.probe", "--synthetic-budget", "5", *built.program, status=1
    ).stderr
    assert "--synthetic-budget: nothing is to be replaced; add --synthetic-data" in said
