# SPDX-License-Identifier: Apache-2.0
"""Ranks that a script starts, or that an interpreter is: no word of the command is a program with MPI's library."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from mpi_programs import LIBRARIES, allow_root, built, launched, results

from checkpoint.errors import (
    Diverged,
    ProbeError,
    ProbeFileDamaged,
    ProgramFailed,
    ProgramNotRunnable,
    ProgramUnsupported,
)
from probe.mpi.library.found import joined, mpi_among, mpi_of, programs_in
from probe.mpi.library.loaded import loaded_by
from probe.mpi.library.symbols import symbols
from probe.mpi.probes.keeping import kept_or_recorded
from probe.mpi.record import record
from probe.mpi.recording import Recording, read_recording
from probe.mpi.replay import alone, replay

pytestmark = [pytest.mark.slow]

PYTHON = "/usr/bin/python3"
"""Debian's, whose mpi4py is of Open MPI."""

RING = """
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
held = [rank]
for step in range(5):
    held = world.sendrecv(held + [step], dest=(rank + 1) % size, source=(rank - 1) % size)
    total = world.allreduce(sum(held), op=MPI.SUM)
print(rank, world.bcast({"total": total, "held": held} if rank == 0 else None, root=0), flush=True)
open(f"ring.{rank}", "w").write(repr((held, total)))
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def script(place: Path, text: str) -> Path:
    made = place / "wrapper"
    made.write_text(f"#!/bin/sh\n{text}\n")
    made.chmod(0o755)
    return made


def test_an_interpreters_ranks_alone(place: Path) -> None:
    (place / "ring.py").write_text(RING)
    made = record(["mpirun.openmpi", "--oversubscribe", "-n", "2", PYTHON, "ring.py"], place / "recording")
    together = results("ring", place, 2)
    for rank in range(2):
        done = replay(made, rank, quiet=True)
        assert (done.status, done.differing) == (0, 0) and done.sent > 5
        assert (place / f"ring.{rank}").read_bytes() == together[rank]
    assert Path(made.ranks[0].program) == Path(PYTHON).resolve()


def test_it_is_called_by_its_name(place: Path) -> None:
    """An interpreter in an environment of its own finds that by the link that it was started by."""
    subprocess.run([PYTHON, "-m", "venv", "--system-site-packages", "--without-pip", "own"], check=True)
    (place / "where.py").write_text("from mpi4py import MPI\nimport sys\nopen('where', 'a').write(sys.prefix + ' ')\n")
    wrapper = script(place, '. own/bin/activate\nexec python "$@"')
    for number, words in enumerate((["own/bin/python"], [str(wrapper)])):
        made = record(["mpirun.openmpi", "-n", "1", *words, "where.py"], place / f"recording{number}")
        assert replay(made, 0, quiet=True).status == 0
    assert (place / "where").read_text().split() == [str(place / "own")] * 4


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_wrapper_is_left_as_it_is(library: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins once more, as far as MPI. What it exports is there for the rank alone; so is the rank's number."""
    built("endings", library, place)
    for name in ("KNOWN", "GONE"):
        monkeypatch.setenv(name, "before")
    (place / "within").mkdir()
    wrapper = script(
        place,
        "echo before >> log\nexport SET='by the wrapper' KNOWN=changed MPI_DATA=its\nunset GONE\ncd within\n"
        '../endings "$@"\necho after >> ../log',
    )
    made = record(launched(library, 2, wrapper, "honest"), place / "recording")
    said = (place / "log").read_text().split()
    # The first rank that comes as far ends the other, which may not have begun.
    assert said.count("after") == 2 and said.count("before") in (3, 4)
    for name in ("KNOWN", "NEW"):
        monkeypatch.setenv(name, "now")
    for rank in range(2):
        started = alone(made, rank)
        its = [started.environment[name] for name in ("SET", "KNOWN", "MPI_DATA", "NEW")]
        assert its == ["by the wrapper", "changed", "its", "now"]
        assert not {"GONE", "PMIX_NAMESPACE", "PMI_FD"} & set(started.environment)
        assert started.environment.get("PWD") == os.environ.get("PWD")
        own = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}[library]
        assert started.environment[own] == str(rank)
        assert "recorder" not in started.environment["LD_PRELOAD"] and "PROBE_MPI_RECORD" not in started.environment
        assert (started.run.folder, started.command[1:]) == (str(place / "within"), ["honest"])
        assert replay(made, rank, quiet=True).status == 0
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in made.folder.glob("environment.*"))
    assert len(list(made.folder.glob("environment.*"))) == 2


def test_what_a_launcher_exports(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = built("endings", "openmpi", place)
    monkeypatch.setenv("SAME", "as here")
    made = record(["mpirun.openmpi", "-x", "GIVEN=1", "-x", "SAME", "-n", "1", str(program)], place / "recording")
    monkeypatch.setenv("SAME", "as it is now")
    assert alone(made, 0).environment["GIVEN"] == "1"
    assert alone(made, 0).environment["SAME"] == "as it is now"


def test_a_wrappers_own_library_stays(place: Path) -> None:
    built("endings", "openmpi", place)
    (place / "own.c").write_text("int own;\n")
    subprocess.run(["cc", "-shared", "-o", "libown.so", "own.c"], check=True)
    wrapper = script(place, f'export LD_PRELOAD="$LD_PRELOAD {place}/libown.so"\nexec ./endings')
    made = record(launched("openmpi", 1, wrapper), place / "recording")
    preloaded = alone(made, 0).environment["LD_PRELOAD"].split()
    assert preloaded[-1] == f"{place}/libown.so" and "recorder" not in " ".join(preloaded)


def test_programs_of_two_languages(place: Path) -> None:
    """All libraries of both are replaced; a wrapper's are those that its program has loaded."""
    in_c, in_fortran = built("cg", "openmpi", place), built("older", "openmpi", place)
    both = joined([mpi for _, mpi in programs_in(["mpirun", str(in_c), ":", str(in_fortran)])])
    ((_, alone_in_c),), ((_, alone_in_fortran),) = programs_in([str(in_c)]), programs_in([str(in_fortran)])
    assert set(both.libraries) == {*alone_in_c.libraries, *alone_in_fortran.libraries} != set(alone_in_c.libraries)
    wrapped = loaded_by(launched("openmpi", 1, script(place, f"exec {in_fortran}")), place)
    assert set(wrapped.libraries) >= set(alone_in_fortran.libraries) and wrapped.core == both.core


def test_nothing_that_is_started_calls_mpi(place: Path) -> None:
    wrapper = script(place, "echo begun >> log")
    with pytest.raises(ProgramNotRunnable, match=r"no word of .*, and nothing that it starts loads one"):
        record(launched("openmpi", 2, wrapper), place / "recording")
    assert (place / "log").read_text().split() == ["begun"] * 2
    assert not (place / "recording").exists()


def test_a_wrapper_that_fails(place: Path) -> None:
    wrapper = script(place, "echo there is no input >&2\nexit 3")
    with pytest.raises(ProgramFailed, match=r"(?s)ended with status 3: .*there is no input"):
        record(["sh", str(wrapper)], place / "recording")


def test_new_fortran_behind_a_wrapper(place: Path) -> None:
    (place / "new.f90").write_text("use mpi_f08\ninteger :: e\ncall MPI_Init(e)\ncall MPI_Finalize(e)\nend\n")
    subprocess.run(["mpif90.openmpi", "-o", "new", "new.f90"], check=True)
    with pytest.raises(ProgramUnsupported, match="mpi_f08"):
        loaded_by(launched("openmpi", 1, script(place, "./new")), place)


def test_nodes_that_share_no_folder(place: Path) -> None:
    built("endings", "openmpi", place)
    with pytest.raises(ProgramNotRunnable, match="without --gather"):
        record(launched("openmpi", 1, script(place, "./endings")), place / "recording", gather=True)


def test_a_rank_that_nobody_ends(place: Path) -> None:
    """Its launcher is gone, and so is the folder that it was to tell: it ends itself."""
    program = built("endings", "openmpi", place)
    wrapper = script(place, f"setsid {program} apart & echo $! > number; wait")
    loaded_by(["sh", str(wrapper)], place)
    number = int((place / "number").read_text())
    deadline = time.monotonic() + 10
    while _is_running(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(number)


def _is_running(number: int) -> bool:
    try:
        return "endings" in Path(f"/proc/{number}/cmdline").read_text()
    except OSError:
        return False


# -- recordings that are damaged, or of libraries that are gone


@pytest.fixture
def recorded(place: Path) -> Recording:
    return record(launched("openmpi", 1, built("endings", "openmpi", place)), place / "recording")


@pytest.mark.parametrize("text", [b"NAME=value", b"=value\0", b"\0", b"NAME=value\0\0"])
def test_a_damaged_environment(text: bytes, recorded: Recording) -> None:
    (recorded.folder / "environment.0").write_bytes(text)
    with pytest.raises(ProbeFileDamaged, match=r"environment\.0: is no environment"):
        alone(recorded, 0)


def test_a_library_that_is_gone(recorded: Recording, place: Path) -> None:
    os.mkfifo(place / "pipe")
    path = recorded.folder / "recording.json"
    library = next(iter(recorded.libraries.values()))
    path.write_text(path.read_text().replace(library, str(place / "gone.so")))
    with pytest.raises(ProgramNotRunnable, match=r"the MPI library libmpi\.so\.\d+ is not in .*gone\.so"):
        alone(read_recording(recorded.folder), 0)
    for name, path in (("libmpi.so,-plugin,x", library), ("../libmpi.so.40", library), ("libmpi.so.40", "pipe")):
        with pytest.raises(ProgramNotRunnable, match="is not in"):
            mpi_of({name: path})
    (place / "broken.so").write_bytes(b"\x7fELF" + b"nothing" * 100)
    with pytest.raises(ProgramNotRunnable, match="that is none"):
        mpi_of({"libmpi.so.40": str(place / "broken.so")})
    with pytest.raises(ProgramNotRunnable, match="names no MPI library"):
        mpi_of({"libm.so.6": os.path.realpath("/lib/x86_64-linux-gnu/libm.so.6")})


# -- files that the recorded run left


def test_what_the_recorded_run_left(place: Path) -> None:
    made = record(launched("openmpi", 2, built("endings", "openmpi", place), "calls"), place / "recording")
    assert "been" in made.left == read_recording(made.folder).left
    with pytest.raises(Diverged, match=r"left its recording .*; an earlier run left been.* --makes"):
        replay(made, 0)
    assert replay(made, 0, makes=["been"]).status == 0
    assert (place / "been").exists()


def test_only_what_the_recorded_run_left_is_removed(place: Path) -> None:
    command = launched("openmpi", 1, built("endings", "openmpi", place), "calls")
    (place / "been.input").touch()
    made = record(command, place / "recording")
    (place / "been.later").touch()
    with pytest.raises(Diverged) as refused:
        replay(made, 0, makes=["been.*"])
    assert "left been in its folder" in str(refused.value)
    assert replay(made, 0, makes=["b*", "e*", "r*"]).status == 0
    assert {"been.input", "been.later", "endings", "recording"} <= {path.name for path in place.iterdir()}


def test_a_rank_in_another_folder(place: Path) -> None:
    built("endings", "openmpi", place)
    (place / "case").mkdir()
    wrapper = script(place, 'cd case && exec ../endings "$@"')
    made = record(launched("openmpi", 1, wrapper, "calls"), place / "recording")
    with pytest.raises(ProbeError, match=r"--makes: rank 0 runs in .*/case, and the program was recorded in"):
        replay(made, 0, makes=["been"])
    assert (place / "case" / "been").exists()


def test_a_script_that_has_changed(place: Path) -> None:
    """Whether or not it is a program: what the command names is what was recorded. What the run changes is its own."""
    built("endings", "openmpi", place)
    wrapper = script(place, 'echo more >> "$1"; exec ./endings')
    (place / "results").write_text("none")
    command = launched("openmpi", 1, wrapper, "results")
    made, _ = kept_or_recorded(command, place / "it.mpiprobe")
    assert set(made.given) == {str(wrapper)}
    assert replay(made, 0, quiet=True).status == 0 and kept_or_recorded(command, place / "it.mpiprobe")[1]
    script(place, "export OTHER=1; exec ./endings")
    with pytest.raises(Diverged, match="wrapper: has changed since the program was recorded with it"):
        replay(made, 0)
    assert not kept_or_recorded(command, place / "it.mpiprobe")[1]


def test_what_the_wrapper_makes_is_gone_before_it_is_recorded(place: Path) -> None:
    """It has been started before, to find the library."""
    built("endings", "openmpi", place)
    wrapper = script(place, "mkdir results && cd results && exec ../endings")
    with pytest.raises(ProgramFailed, match="File exists"):
        record(launched("openmpi", 1, wrapper), place / "first")
    (place / "results").rmdir()
    made = record(launched("openmpi", 1, wrapper), place / "recording", makes=["results"])
    assert made.left == ("results",)


def test_files_that_are_there_before_it_is_recorded(place: Path) -> None:
    (place / "been").touch()
    command = launched("openmpi", 1, built("endings", "openmpi", place), "calls")
    with pytest.raises(ProbeError, match="been: is there before the program runs"):
        kept_or_recorded(command, place / "it.mpiprobe", makes=["been"])
    (place / "been").unlink()
    made, is_kept = kept_or_recorded(command, place / "it.mpiprobe", makes=["been"])
    assert not is_kept and (place / "been").exists()
    with pytest.raises(ProbeError, match="which is this build's own"):
        kept_or_recorded(command, Path("it.mpiprobe"), makes=["it.*"])
    # What is kept is used again, as it was made before the files were.
    assert kept_or_recorded(command, place / "it.mpiprobe", makes=["been"])[1]
    (made.folder / "environment.0").unlink()
    (place / "been").unlink()
    assert not kept_or_recorded(command, place / "it.mpiprobe", makes=["been"])[1]


# -- libraries as files


def test_a_library_under_another_name(place: Path) -> None:
    """The loader knows it by the name that is in it."""
    ((_, mpi),) = programs_in([str(built("cg", "openmpi", place))])
    (place / "libmpi_here.so").symlink_to(dict(mpi.libraries)[mpi.core])
    assert mpi_among("it", [place / "libmpi_here.so", Path("/bin/true"), place / "nowhere"]) == mpi


def test_symbols_that_are_no_labels(place: Path) -> None:
    (place / "odd.c").write_text('__asm__(".globl \\"a;ud2\\", plain\\n\\"a;ud2\\": plain: nop");\n')
    subprocess.run(["cc", "-shared", "-o", "odd.so", "odd.c"], check=True)
    assert "a;ud2" in subprocess.run(["nm", "-D", "odd.so"], check=True, capture_output=True, text=True).stdout
    assert [name for name, _, _ in symbols(place / "odd.so") if name in ("a;ud2", "plain")] == ["plain"]
