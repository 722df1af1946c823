# SPDX-License-Identifier: Apache-2.0
"""Recordings that ranks send who do not see the folder: whole, cut short, foreign, forged, or nothing at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from mpi_programs import LIBRARIES, allow_root, built, launched

from checkpoint.errors import ProbeFileDamaged, ProgramUnsupported, StorageError
from probe.mpi import gathering
from probe.mpi.gathering import printed_reason
from probe.mpi.record import record
from probe.mpi.recording import Recording, digest_of
from probe.mpi.surroundings import Surroundings, read_surroundings


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def forged(library: str, how: str, place: Path, **said: str) -> Recording:
    """Rank 0 is recorded. Rank 1, which no word of the command names, sends what rank 1 of another run had.

    said: what is another: its program, the library that it names, its digest.
    """
    program = built("forger", library, place)
    first = record(launched(library, 2, program, "honest"), place / "first")
    for name in ("calls.0.000", "calls.1.000", "inbox.1.000"):
        (place / name).write_bytes((first.folder / name).read_bytes())
    honest = {"program": str(program), "named": first.library, "digest": first.digests[str(program)]}
    its = {**honest, **said}
    words = [its["program"], str(place), its["named"], "1", "nb", its["digest"], "1", "./forger", "SENT=1", ""]
    (place / "rank.1").write_bytes("\0".join(words).encode()[: 8 if how == "half" else None])
    try:
        return record(beside(library, program, how), place / "recording", gather=True)
    except Exception:
        assert not (place / "recording").exists()
        raise


def beside(library: str, program: Path, how: str) -> list[str]:
    return [f"mpirun.{library}", "-n", "1", str(program), "honest", ":", "-n", "1", "sh", "-c", f"./forger {how}"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_recording_that_is_whole(library: str, place: Path) -> None:
    made = forged(library, "whole", place)
    assert [run.host for run in made.ranks][1] == "nb" and len(made.ranks) == 2
    assert (made.folder / "calls.1.000").read_bytes() == (place / "calls.1.000").read_bytes()
    # The environment of another host's user is not ours.
    assert read_surroundings(made.folder, 1) == Surroundings({})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("kind", "rank 1 sent a file of no kind"),
        ("part", "rank 1 sent a part out of its order"),
        ("twice", "rank 1 sent a part out of its order"),
        ("long", "rank 1 sent a description larger than any"),
        ("huge", "rank 1 sent more than --max-inbox"),
        ("tiny", "rank 1 sent a part without its header"),
        ("empty", "rank 1 sent an empty part"),
        pytest.param("many", "rank 1 sent more parts than are read", marks=pytest.mark.slow),
        ("piece", "rank 1 sent a piece of another size"),
    ],
)
def test_a_file_that_is_not_as_it_must_be(how: str, said: str, place: Path) -> None:
    with pytest.raises(ProgramUnsupported, match=f"rank 0: {said} in its recording"):
        forged("openmpi", how, place)


def test_contents_that_are_not_as_they_must_be(place: Path) -> None:
    for how, said in (
        ("cut", "calls.1.000: has .* bytes, not .*: it is cut short"),
        ("foreign", "calls.1.000: is part 0 of rank 0, under another's name"),
    ):
        with pytest.raises(ProbeFileDamaged, match=said):
            forged("openmpi", how, place)
        (place / "first").rename(place / how)
    with pytest.raises(ProbeFileDamaged, match="has no calls of rank 1"):
        forged("openmpi", "nothing", place)


def test_another_program_or_library_there(place: Path) -> None:
    with pytest.raises(ProgramUnsupported, match=r"rank 1 on nb ran another .*/forger than the one here"):
        forged("openmpi", "whole", place, digest="0" * 64)
    (place / "first").rename(place / "one")
    with pytest.raises(ProgramUnsupported, match=r"rank 1 on nb has another MPI library \(Open MPI v5.*\) than rank 0"):
        forged("openmpi", "whole", place, named="Open MPI v5.0.0")


def test_a_program_that_is_no_word_of_the_command(place: Path) -> None:
    """A path from another node is not opened here: a device has no end, a pipe nobody writes to."""
    os.mkfifo(place / "pipe")
    for name in ("/dev/zero", str(place / "pipe"), ""):
        said = f"rank 1 on nb ran {name or 'a program of no name'}, which is no program of the command"
        with pytest.raises(ProgramUnsupported, match=said):
            forged("openmpi", "whole", place, program=name)
        shutil.rmtree(place / "first")
    with pytest.raises(ProgramUnsupported, match=r"rank 1 on nb did not say which .*/forger it ran"):
        forged("openmpi", "whole", place, digest="")


def test_what_no_program_is(place: Path) -> None:
    os.mkfifo(place / "pipe")
    (place / "endless").touch()
    os.truncate(place / "endless", 1 << 40)
    for path in (Path("/dev/zero"), place / "pipe", place, place / "endless"):
        with pytest.raises(StorageError, match=f"{path}: (is no program|cannot be read)"):
            digest_of(path)
    for path in (place / "nowhere", Path("a\0b")):
        with pytest.raises(StorageError):
            digest_of(path)
    (place / "large").write_bytes(bytes(range(256)) * 10_000)
    assert digest_of(place / "large") == hashlib.sha256((place / "large").read_bytes()).hexdigest()


def test_a_description_cut_short(place: Path) -> None:
    with pytest.raises(ProbeFileDamaged, match=r"rank.1: does not describe a rank"):
        forged("openmpi", "half", place)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_rank_without_the_recorder(library: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PATIENCE", 2)
    program = built("forger", library, place)
    with pytest.raises(ProgramUnsupported, match="rank 0: another rank does not run under the recorder"):
        record(beside(library, program, "honest"), place / "recording", gather=True)
    assert not (place / "recording").exists()


@pytest.mark.parametrize("library", LIBRARIES)
def test_ranks_that_all_see_the_folder(library: str, place: Path) -> None:
    program = built("cg", library, place)
    plain = record(launched(library, 3, program), place / "plain")
    made = record(launched(library, 3, program), place / "made", gather=True)
    assert sorted(path.name for path in made.folder.iterdir()) == sorted(path.name for path in plain.folder.iterdir())
    assert made.command == plain.command and made.ranks == plain.ranks and made.processors == plain.processors > 0


def test_the_environment_is_the_programs_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rank starts does not look for a recorder that is gone."""
    program = built("starts", "openmpi", place)
    for others in ("", "libm.so.6"):
        monkeypatch.setenv("LD_PRELOAD", others)
        made = record(launched("openmpi", 1, program), place / f"recording{others}", gather=True)
        assert (made.folder / "printed").read_text() == f"preloaded:{others}\n"


def test_what_ranks_print() -> None:
    assert printed_reason(b"a\n[1,0]<stderr>:probe: rank 12: full\r\nprobe: rank 3: no\n") == ("rank 12", "full")
    assert printed_reason(b"probe: rank of n-1.x: none\n") == ("rank of n-1.x", "none")
    assert printed_reason(b"probe: rank of : none\nprobe: rank 123456789: x\nprobe: rank 1: \n") is None
    said = printed_reason(b"probe: rank 1: " + b"\xff" * 5000)
    assert said is not None and len(said[1]) == 300


def test_no_word_of_the_command_is_changed_but_the_first_program(place: Path) -> None:
    program = built("cg", "openmpi", place)
    (place / "library").write_bytes(b"recorder" * 20_000)
    words = ["mpirun", "-n", "1", str(program), str(program), ":", "-n", "2", str(program), "a b"]
    made = gathering.carried(words, [program], place / "library", {"PROBE_MPI_RECORD": "/with 'quotes'"})
    shells = [number for number, word in enumerate(made.command) if word == "sh"]
    assert len(shells) == 2 and made.command[:3] == ("mpirun", "-n", "1")
    assert [word for word in made.command if word == str(program)] == [str(program)] * 3
    assert made.command[-2:] == (str(program), "a b")
    assert "PROBE_MPI_RECORD='/with '\"'\"'quotes'\"'\"''" in made.command[shells[0] + 2]
    other = gathering.carried(words, [program], place / "library", {})
    assert len(made.token) == 32 and made.token != other.token
