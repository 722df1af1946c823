# SPDX-License-Identifier: Apache-2.0
"""Calls that few programs make: what is counted of them, what of a rank alone may differ, and what has no wrapper."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from mpi_parts import inbox_of, record_of
from mpi_programs import LIBRARIES, allow_root, built, launched, printed, recorded, results

from checkpoint.errors import ProbeFileDamaged, ProgramUnsupported
from probe.cli.main import cli
from probe.mpi.parts import BEGIN, COPY, DELETE, END, check_inbox
from probe.mpi.record import record
from probe.mpi.replay import replay
from probe.mpi.trace import read_calls

pytestmark = [pytest.mark.slow]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def test_computing_before_a_call_that_calls_back_is_counted_once(place: Path) -> None:
    made = recorded("attributes", "openmpi", 2, place)
    assert all(0.1 <= read_calls(made.folder, rank).computing < 0.18 for rank in range(2))


def test_a_quiet_rank_may_open_dev_null_as_its_output(place: Path) -> None:
    made = recorded("older", "openmpi", 2, place)
    first = results("older", place, 2)
    assert [replay(made, rank, quiet=True).status for rank in range(2)] == [0, 0]
    assert results("older", place, 2) == first


@pytest.mark.parametrize("library", LIBRARIES)
def test_fortran_without_a_wrapper_is_named_when_it_is_recorded(library: str, place: Path) -> None:
    program = built("older", library, place)
    with pytest.raises(ProgramUnsupported, match="calls mpi_comm_create_keyval_, which is not recorded"):
        record(launched(library, 2, program, "keys"), place / "recording")


def test_few_bytes_of_other_data_are_a_note(place: Path) -> None:
    made = record(launched("openmpi", 2, built("endings", "openmpi", place), "few"), place / "recording")
    assert printed("replay", "--rank", "1", "--json", made.folder)["differing"] == 1
    said = CliRunner().invoke(cli, ["mpi", "replay", "--rank", "0", str(made.folder)]).stderr
    assert "2 messages sent as recorded, 1 of them with other data, first in call" in said


@pytest.mark.parametrize("kind", [COPY, DELETE])
@pytest.mark.parametrize(
    ("key", "repeats", "sound"), [(bytes(8), 0, True), (bytes(16), 0, False), (bytes(8), 1, False)]
)
def test_functions_of_attributes_have_a_key(kind: int, key: bytes, repeats: int, sound: bool, place: Path) -> None:
    inbox_of(place, 0, 1, [[record_of(BEGIN, b""), record_of(kind, key, repeats), record_of(END, b"")]])
    if sound:
        assert check_inbox(place, 0).answers == 0
        return
    with pytest.raises(ProbeFileDamaged, match=r"without its key|a repeated record"):
        check_inbox(place, 0)
