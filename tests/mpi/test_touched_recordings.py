# SPDX-License-Identifier: Apache-2.0
"""Folders of recordings that others made or touched, and nodes that cannot hold or start what is sent to them."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from mpi_programs import LIBRARIES, allow_root, built, launched

from checkpoint.errors import ProbeError, ProbeFileDamaged, ProgramFailed, ProgramUnsupported, StorageError
from probe.mpi.record import record
from probe.mpi.recording import Recording


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    (tmp_path / "kept").write_text("kept")
    return tmp_path


def touched(script: str, program: Path, *words: str, ranks: int = 1, gather: bool = True) -> Recording:
    """Recorded with a launcher that runs the script, in which "$@" are the launcher and the program."""
    command = ["sh", "-c", script, "sh", *launched("openmpi", ranks, program, *words)]
    return record(command, Path("rec"), gather=gather)


@pytest.mark.parametrize(
    "script",
    [
        "chmod g+w rec", "chmod o+w rec", "chown 65534 rec", "mv rec moved; ln -s moved rec",
        "chown 65534 rec/token", "mv rec/token rec/t; ln -s t rec/token", "rm rec/token; mkfifo rec/token",
    ],
)  # fmt: skip
def test_a_folder_that_another_user_may_have_made(script: str, place: Path) -> None:
    """It has the token, which everybody on a node can read: the rank takes it for another."""
    program = built("cg", "openmpi", place)
    with pytest.raises(ProgramUnsupported, match="no rank runs on a node that has the recording's folder"):
        touched(f'{script}; exec "$@"', program)


def test_folders_that_a_group_may_write(place: Path) -> None:
    """As with the umask that many systems give."""
    before = os.umask(0o002)
    try:
        made = touched('exec "$@"', built("cg", "openmpi", place))
    finally:
        os.umask(before)
    assert len(made.ranks) == 1 and made.folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("gather", [False, True])
def test_files_that_are_there_before(gather: bool, place: Path) -> None:
    """Nothing is written through a link, nor over a file."""
    program = built("cg", "openmpi", place)
    for name, target in (("calls.0.000", "-s ../kept"), ("inbox.0.000", "kept"), ("calls.0.000", "-s ../new")):
        with pytest.raises(ProgramUnsupported, match=rf"rec/{name} cannot be written: File exists"):
            touched(f'ln {target} rec/{name}; exec "$@"', program, gather=gather)
    endings = built("endings", "openmpi", place)
    with pytest.raises(ProbeError):
        touched('ln -s ../kept rec/aborted.1; exec "$@"', endings, "abort", ranks=2, gather=gather)
    assert (place / "kept").read_text() == "kept" and not (place / "new").exists()


def test_files_of_the_gathering_that_the_program_touched(place: Path) -> None:
    program = built("cg", "openmpi", place)
    with pytest.raises(StorageError, match=r"cannot use .*rec: No such file"):
        touched('"$@" && rm rec/token', program)
    with pytest.raises(ProbeFileDamaged, match=r"gathered.0: is no number of nanoseconds"):
        touched('"$@" && printf x >rec/gathered.0', program)
    with pytest.raises(StorageError, match=r"gathered.7: not a regular file"):
        touched('"$@" && mkfifo rec/gathered.7', program)
    assert not Path("rec").exists()


_HIDDEN = 'mount -t tmpfs tmpfs "$0"; exec "$@"'


def test_a_spool_that_cannot_be_read(place: Path) -> None:
    """An error is not the end of what was written."""
    program = str(built("unread", "openmpi", place))
    apart = ["unshare", "--mount", "sh", "-c", _HIDDEN, str(place / "rec"), program]
    command = [*launched("openmpi", 1, Path(program)), ":", "-n", "1", *apart]
    with pytest.raises(ProgramFailed, match="rank 1: what it wrote on its node cannot be read again"):
        record(command, Path("rec"), gather=True)


def on_a_node(script: str, library: str, program: Path) -> Recording:
    """Recorded in a mount namespace of its own, which the script changes before the launcher begins."""
    inside = ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh"]
    return record([*inside, *launched(library, 1, program)], Path("rec"), gather=True)


def left(*places: Path) -> list[Path]:
    return [path for place in (Path("/tmp"), *places) for path in place.glob("probe-mpi-??????")]


@pytest.mark.parametrize("name", ["plain", "with a blank", "with:colons", "with$ORIGIN"])
def test_folders_of_any_name(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(place / name))
    before = left(place / name)
    made = touched('exec "$@"', built("starts", "openmpi", place))
    assert left(place / name) == before
    assert (made.folder / "printed").read_text() == "preloaded:\n"


def test_a_folder_that_forbids_programs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp is taken then; where it forbids them, too, that is said."""
    program = built("cg", "openmpi", place)
    (place / "here").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "here"))
    forbid = "mount -t tmpfs -o noexec tmpfs here"
    before = left(place)
    assert len(on_a_node(forbid, "openmpi", program).ranks) == 1
    assert left(place / "here") == [] and left(place) == before
    # The program's folder may be below /tmp: no other is mounted there.
    forbid += "; mount --bind /tmp /tmp; mount -o remount,bind,noexec /tmp"
    shutil.rmtree("rec")
    with pytest.raises(ProgramFailed, match=r"rank of .*: neither TMPDIR nor /tmp can hold programs"):
        on_a_node(forbid, "openmpi", program)
    assert left(place / "here") == [] and left(place) == before


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_program_that_cannot_be_started(library: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = built("cg", library, place)
    (place / "here").mkdir()
    monkeypatch.setenv("TMPDIR", str(place / "here"))
    forbid = f"mount --bind {shlex.quote(str(place))} {shlex.quote(str(place))}; mount -o remount,bind,noexec ."
    with pytest.raises(ProgramFailed, match=r"rank of .*: .*cg cannot be started"):
        on_a_node(f'mount -t tmpfs tmpfs here; {forbid}; cd "$PWD"', library, program)
    assert left(place / "here") == []


def test_a_node_without_sha256sum(place: Path) -> None:
    program = built("cg", "openmpi", place)
    with pytest.raises(ProgramFailed, match=r"rank of .*: sha256sum is not there"):
        on_a_node('mount --bind /dev/null "$(command -v sha256sum)"', "openmpi", program)
    with pytest.raises(ProgramFailed, match=r"rank of .*: .*cg cannot be read"):
        on_a_node('mount --bind /bin/false "$(command -v sha256sum)"', "openmpi", program)
