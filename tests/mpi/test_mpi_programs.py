# SPDX-License-Identifier: Apache-2.0
"""MPI programs of both libraries, recorded under their own launchers, replayed alone, simulated, probed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mpi_programs import LIBRARIES, allow_root, built, launched, printed, recorded, results
from published import schema_errors
from small_probe import ROOT
from sshd import machine

from checkpoint.errors import (
    Diverged,
    ModelInvalid,
    ProbeError,
    ProbeFileDamaged,
    ProgramFailed,
    ProgramNotRunnable,
    ProgramUnsupported,
    StorageError,
    ToolMissing,
)
from checkpoint.process.maps import is_own
from probe.cli.main import cli
from probe.mpi.library.compiling import compiler_for, replacements
from probe.mpi.library.found import programs_in
from probe.mpi.library.symbols import needed
from probe.mpi.record import record
from probe.mpi.recording import Recording, read_recording
from probe.mpi.replay import alone, replay
from probe.mpi.simulate import Where, simulate
from probe.mpi.trace import read_calls
from probe.simulation.platform import Links

pytestmark = [pytest.mark.slow(minutes=2)]

RANKS = 3
CODES = {
    "halo": 4, "cg": 3, "fft": 4, "pipeline": 3, "workers": 3, "ocean": 3, "corners": 3, "seldom": 3, "attributes": 3,
    "older": 3,
}  # fmt: skip
"""The suite, with ranks that each can be divided by."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allow_root(monkeypatch)
    return tmp_path


def on(network: str, latency: float = 1e-6, bandwidth: float = 1e10) -> Where:
    return Where(network=network, links=Links(bandwidth, latency))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", CODES)
def test_each_rank_alone_finds_the_same_to_the_bit(name: str, library: str, place: Path) -> None:
    ranks = CODES[name]
    made = recorded(name, library, ranks, place)
    first = results(name, place, ranks)
    # Another time of day, other load, and for the master another order of answers would be.
    for rank in range(ranks):
        done = replay(made, rank)
        assert done.status == 0
        assert done.sent > 0
    assert results(name, place, ranks) == first
    found = simulate(made, on("torus:2x2"))
    assert found.seconds >= max(read_calls(made.folder, rank).computing for rank in range(ranks)) * 0.99


@pytest.fixture(scope="module")
def halo(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Two ranks of Open MPI."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("halo")
        patch.chdir(folder)
        allow_root(patch)
        return recorded("halo", "openmpi", 2, folder, ["600", "200"])


# -- what the recorder sees


def test_calls_have_peers_sizes_and_computing(halo: Recording) -> None:
    from probe.mpi.library.calls import names

    found = read_calls(halo.folder, 0)
    named = [names()[number] for number in found.calls["function"]]
    assert named.count("Isend") == named.count("Irecv") == 4 * 200
    assert named.count("Allreduce") == 200
    sends = found.calls[[name == "Isend" for name in named]]
    # Up there is nobody; to the left and to the right is this rank itself, one column in all.
    assert set(sends["peer"].tolist()) == {-1, 0, 1}
    assert set((sends["count"] * sends["element"]).tolist()) == {600 * 8, 300 * 8}
    assert 0 < found.computing < halo.seconds


def test_answers_of_chosen_ranks_alone(place: Path) -> None:
    program = built("cg", "openmpi", place)
    made = record(launched("openmpi", 3, program), place / "recording", ranks=[1])
    assert [one.kept for one in made.ranks] == [False, True, False]
    assert replay(made, 1).status == 0
    with pytest.raises(ProgramUnsupported, match=r"rank 2 was recorded without its answers \(with them: 1\)"):
        replay(made, 2)
    with pytest.raises(ProbeError, match="recorded with 3 ranks, asked for rank 3"):
        replay(made, 3)
    # A simulation needs no answers.
    assert simulate(made, on("torus:3")).seconds > 0


def test_a_rank_alone_is_an_ordinary_process(halo: Recording) -> None:
    """One thread, no sockets, and none of the real library: what a probe can hold."""
    started = alone(halo, 1)
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=clone,clone3,fork,socket,openat", *started.command]
        if shutil.which("strace")
        else started.command,
        env={**started.environment, "LD_DEBUG": "libs"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "libopen-pal" not in done.stderr
    assert "libopen-rte" not in done.stderr
    assert "initializing" not in done.stderr or "/libmpi.so.40.30" not in done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_replacements_have_all_that_the_library_has(library: str, place: Path) -> None:
    program = built("ocean", library, place)
    ((_, mpi),) = programs_in(launched(library, 2, program))
    made = replacements(mpi)
    assert len(made) == len(mpi.libraries)
    for path in made:
        assert not [name for name in needed(path) if name.startswith(("libmpi", "libopen"))]
        # Their blocks are not the program's, and are not counted.
        assert not is_own(str(path))


# -- programs that cannot be recorded, or replayed


def refused(place: Path, how: str, error: type[ProbeError], message: str, ranks: int = 2) -> None:
    program = built("endings", "openmpi", place)
    with pytest.raises(error, match=message):
        record(launched("openmpi", ranks, program, how), place / "recording")
    assert not (place / "recording").exists()


def test_several_threads_are_refused(place: Path) -> None:
    """Also while the first one is in a call, as it is where it may be the library that calls for itself."""
    refused(place, "threads", ProgramUnsupported, "another thread than the first calls MPI")


def test_absolute_addresses_are_refused(place: Path) -> None:
    refused(place, "bottom", ProgramUnsupported, r"MPI_BOTTOM|more than 1 GB")


def test_an_abort_is_named(place: Path) -> None:
    refused(place, "abort", ProgramFailed, "rank 1 called MPI_Abort with status 5")


def test_a_rank_that_dies_is_no_recording(place: Path) -> None:
    refused(place, "die", ProgramFailed, "ended with status")


def test_an_exit_status_is_the_launchers(place: Path) -> None:
    refused(place, "status", ProgramFailed, "ended with status 3")


def test_one_rank_without_a_launcher(place: Path) -> None:
    program = built("endings", "openmpi", place)
    assert replay(record([str(program)], place / "recording"), 0).sent == 1


def test_other_data_than_recorded(place: Path) -> None:
    made = record(launched("openmpi", 2, built("endings", "openmpi", place), "random"), place / "recording")
    with pytest.raises(Diverged, match="rank 0 alone sends other data in 1 of 1 messages, the first in call"):
        replay(made, 0)


def test_other_calls_than_recorded(place: Path) -> None:
    made = record(launched("openmpi", 2, built("endings", "openmpi", place), "calls"), place / "recording")
    with pytest.raises(Diverged, match=r"left its recording \(recorded MPI_Finalize, made MPI_Barrier\)"):
        replay(made, 0)


def test_an_answer_larger_than_allowed(place: Path) -> None:
    program = built("halo", "openmpi", place)
    with pytest.raises(ProgramUnsupported, match="larger than --max-inbox"):
        record(launched("openmpi", 2, program), place / "recording", most_inbox=1000)


def test_what_is_no_mpi_program(place: Path) -> None:
    with pytest.raises(ProgramNotRunnable, match="no word of"):
        record(["mpirun", "-n", "2", "/bin/true"], place / "recording")


def test_mpi_inside_of_the_program(place: Path) -> None:
    (place / "inside.c").write_text("int MPI_Init(void) { return 0; }\nint main(void) { return MPI_Init(); }\n")
    subprocess.run(["cc", "-o", "inside", "inside.c"], check=True)
    with pytest.raises(ProgramUnsupported, match="MPI is linked into the program"):
        record(["mpirun", "-n", "2", "./inside"], place / "recording")


def test_new_fortran_bindings(place: Path) -> None:
    (place / "new.f90").write_text("use mpi_f08\ninteger :: e\ncall MPI_Init(e)\ncall MPI_Finalize(e)\nend\n")
    subprocess.run(["mpif90.openmpi", "-o", "new", "new.f90"], check=True)
    with pytest.raises(ProgramUnsupported, match="mpi_f08"):
        record(["mpirun", "-n", "2", "./new"], place / "recording")


def test_two_libraries_in_one_command(place: Path) -> None:
    (place / "other").mkdir()
    programs = [built("cg", "openmpi", place), built("cg", "mpich", place / "other")]
    with pytest.raises(ProgramUnsupported, match="two MPI libraries"):
        record(["mpirun", "-n", "1", str(programs[0]), ":", "-n", "1", str(programs[1])], place / "recording")


def test_a_compiler_of_another_library(place: Path) -> None:
    ((_, mpi),) = programs_in([str(built("cg", "openmpi", place))])
    with pytest.raises(ToolMissing, match="no compiler for"):
        compiler_for(mpi, "mpicc.mpich")
    with pytest.raises(ToolMissing, match=r"no C compiler \(nowhere\)"):
        compiler_for(mpi, "nowhere")


def test_two_programs_in_one_run(place: Path) -> None:
    (place / "other").mkdir()
    programs = [built("cg", "openmpi", place), built("cg", "openmpi", place / "other")]
    command = ["mpirun", "--oversubscribe", "-n", "1", str(programs[0]), ":", "-n", "1", str(programs[1])]
    made = record(command, place / "recording")
    assert [Path(one.program).parent.name for one in made.ranks] == [place.name, "other"]
    assert replay(made, 1).status == 0


def test_a_folder_that_exists(place: Path) -> None:
    with pytest.raises(StorageError, match="exists already"):
        record([str(built("cg", "openmpi", place))], place)


# -- recordings that are damaged, or not of this program


@pytest.fixture
def copied(halo: Recording, place: Path) -> Recording:
    shutil.copytree(halo.folder, place / "copy")
    return read_recording(place / "copy")


def test_a_program_that_has_changed(copied: Recording, place: Path) -> None:
    program = Path(shutil.copy(copied.ranks[0].program, place / "halo"))
    path = copied.folder / "recording.json"
    path.write_text(path.read_text().replace(copied.ranks[0].program, str(program)))
    assert replay(read_recording(copied.folder), 0).status == 0
    with program.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(Diverged, match="has changed since it was recorded"):
        replay(read_recording(copied.folder), 0)


def test_swapped_ranks(copied: Recording) -> None:
    shutil.copy(copied.folder / "inbox.1.000", copied.folder / "inbox.0.000")
    with pytest.raises(ProbeFileDamaged, match="is part 0 of rank 1, under another's name"):
        replay(copied, 0)


def test_an_inbox_cut_short(copied: Recording) -> None:
    for path in sorted(copied.folder.glob("inbox.0.*"))[1:]:
        path.unlink()
    with pytest.raises(ProbeFileDamaged, match=r"has no end|no inbox"):
        replay(copied, 0)


# -- simulation


def test_more_latency_is_never_faster_and_none_is_the_longest_computing(halo: Recording) -> None:
    seconds = [simulate(halo, on("torus:2", latency)).seconds for latency in (0.0, 1e-6, 1e-4)]
    assert seconds == sorted(seconds)
    assert seconds[2] > seconds[0] * 1.05
    slowest = max(read_calls(halo.folder, rank).computing for rank in range(2))
    both = sum(read_calls(halo.folder, rank).computing for rank in range(2))
    assert slowest * 0.999 < simulate(halo, on("torus:2", 0.0, 1e15)).seconds <= both


def test_computing_is_scaled(halo: Recording) -> None:
    whole, half, none = (simulate(halo, on("torus:2"), scale=scale) for scale in (1.0, 0.5, 0.0))
    assert none.seconds < half.seconds < whole.seconds
    assert half.computing[0] == pytest.approx(whole.computing[0] / 2)
    assert none.share == 0


PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full"><host id="n0" speed="2Gf" core="2"/>
  <link id="own" bandwidth="5GBps" latency="0.3us" sharing_policy="FATPIPE"/>
  <route src="n0" dst="n0"><link_ctn id="own"/></route></zone>
</platform>
"""


def test_a_platform_file(halo: Recording, place: Path) -> None:
    (place / "node.xml").write_text(PLATFORM)
    found = simulate(halo, Where(place / "node.xml", per_node=2))
    # A host's speed is its own: computing takes the time that was recorded.
    assert found.computing[0] == pytest.approx(read_calls(halo.folder, 0).computing, rel=1e-6)
    assert found.seconds < 2 * found.computing[0]
    with pytest.raises(ModelInvalid, match="has 1 hosts, too few for 2 ranks at 1 a node"):
        simulate(halo, Where(place / "node.xml"))


def test_ranks_share_a_node_or_not(halo: Recording) -> None:
    apart = simulate(halo, on("torus:2", 1e-3))
    together = simulate(halo, Where(network="torus:2", links=Links(1e10, 1e-3), per_node=2))
    assert together.seconds < apart.seconds


def test_simgrid_missing(halo: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match="libsimgrid-dev"):
        simulate(halo, on("torus:2"))


def test_a_simulation_that_takes_too_long(halo: Recording) -> None:
    with pytest.raises(ModelInvalid, match="was not over after"):
        simulate(halo, on("torus:2"), limit=0.01)


# -- the command line


def test_verbs_from_end_to_end(place: Path) -> None:
    program = built("halo", "openmpi", place)
    command = launched("openmpi", 2, program, "1200", "1000")
    answers = {"record": printed("record", "-o", "rec", "--json", "--", *command)}
    answers["show"] = printed("show", "--json", "rec")
    assert answers["show"] == answers["record"]
    answers["replay"] = printed("replay", "--rank", "1", "--json", "rec")
    words = ("build", "--capture", "direct", "--runs", "1", "-q", "-o", "app.mpiprobe", "--json")
    answers["build"] = printed(*words, "--", *command)
    answers["simulate"] = printed("simulate", "--network", "torus:2", "--json", "app.recording")
    answers["run"] = printed("run", "-q", "--repeat", "3", "--network", "torus:2", "--json", "app.mpiprobe")
    for verb, answer in answers.items():
        assert schema_errors(f"probe-mpi-{verb}", answer) == []
    predicted = answers["run"]["prediction"]
    assert predicted["low"] < predicted["seconds"] < predicted["high"]
    computing = [one["computing"] for one in answers["simulate"]["ranks"]]
    ratio = {one["representative"]: one["ratio"] for one in answers["run"]["clusters"]}
    scaled = [one["computing"] for one in answers["run"]["simulation"]["ranks"]]
    assert answers["build"]["recording"] == "app.recording"
    assert all((one["verified"] is None) == (len(one["ranks"]) == 1) for one in answers["build"]["clusters"])
    for cluster in answers["build"]["clusters"]:
        for rank in cluster["ranks"]:
            assert scaled[rank] == pytest.approx(computing[rank] * ratio[cluster["representative"]], rel=1e-6)
    with pytest.raises(ProbeFileDamaged, match="a recording without probes"):
        printed("run", "--network", "torus:2", "--json", "rec")
    on_a_node(place / "app.mpiprobe", place / "machine")


def on_a_node(probe: Path, folder: Path) -> None:
    """Anybody's node, over SSH: it may not enter the folders that the rank ran in."""
    with machine(folder) as made:
        server = made.serve()
        ssh = ["--identity", made.identity, "--known-hosts", made.known_hosts, "--ssh-config", "/dev/null"]
        words = ["--network", "torus:2", "--json", "-q", "--repeat", "2", "--on", f"guest@127.0.0.1:{server.port}"]
        command = [sys.executable, "-m", "probe", "mpi", "run", probe, *ssh, *words]
        told = subprocess.run(
            made.command(["env", f"PYTHONPATH={ROOT}", *command]), capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        answer = json.loads(told.stdout)
        assert schema_errors("probe-mpi-run", answer) == []
        assert answer["prediction"]["low"] < answer["prediction"]["seconds"] < answer["prediction"]["high"]
        assert made.users_processes() == {}


def test_one_network_is_wanted(halo: Recording) -> None:
    for words in ([], ["--network", "torus:2", "--platform", "a.xml"]):
        done = CliRunner().invoke(cli, ["mpi", "simulate", *words, str(halo.folder)])
        assert done.exit_code == 2
        assert "one of --platform and --network is wanted" in done.output
