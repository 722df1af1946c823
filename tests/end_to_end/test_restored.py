# SPDX-License-Identifier: Apache-2.0
"""Probes on a node that differs from the one they were built on, and phases that fail there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest
from command import Command, criu_script, in_mounts, wait_for
from conftest import MakeProgram, Sample

from checkpoint.process.waiting import process_state
from probe import BuildOptions, SelectionOptions, build


@pytest.fixture(params=["direct", "criu"])
def restorer(request: pytest.FixtureRequest) -> str:
    """Both ways to restore."""
    return str(request.param)


def renamed(name: str) -> list[str]:
    """A prefix for a node of another name."""
    return ["unshare", "--uts", "sh", "-c", f'echo {name} > /proc/sys/kernel/hostname; exec "$@"', "sh"]


def built(folder: Path, *argv: str | Path, **options: Any) -> Path:
    """A probe built here, with fewer runs than the command makes."""
    quick = BuildOptions(interval=0.02, runs=1, repeats=2, capture="criu", selection=SelectionOptions(max_phases=2))
    path = folder / "built.probe"
    build([str(word) for word in argv], path, options=quick, cwd=str(folder), **options)
    return path


def fingerprint(path: Path) -> tuple[str, int, int]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode, path.stat().st_mtime_ns


def test_both_ways_of_restoring_give_the_same_times(sample: Sample) -> None:
    """Measured by turns: no other size, where a host has two speeds. How close they are, the benchmarks say."""
    assert [phase["only_criu"] for phase in sample.described["phases"] if phase["only_criu"]] == []
    ratios = [phase["t_ref_direct"] / phase["t_ref"] for phase in sample.described["phases"]]
    assert 0.5 < statistics.median(ratios) < 2.0 and min(ratios) > 0.3 and max(ratios) < 3.3, ratios


# -- phases that fail


@pytest.fixture(scope="module")
def changeable(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> Path:
    """A probe whose phases misbehave on a node of another name."""
    return built(tmp_path_factory.mktemp("changeable"), program("elsewhere"), "300")


def test_a_phase_lives_where_nothing_changed(changeable: Path, command: Command, restorer: str) -> None:
    assert command("run", "-q", "--restorer", restorer, "--repeat", "1", changeable).returncode == 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("illegal", ["SIGILL", "lacks an instruction", "--isa"]),
        ("segment", ["SIGSEGV", "memory"]),
        ("divide", ["SIGFPE", "arithmetic"]),
        ("kill", ["SIGKILL", "memory"]),
        ("exit", ["exited with status 5"]),
    ],
)
def test_a_phase_that_dies(how: str, words: list[str], changeable: Path, command: Command, restorer: str) -> None:
    said = command.refused(12, "run", "-q", "--restorer", restorer, "--repeat", "1", changeable, prefix=renamed(how))
    assert re.search(r"phase \d", said)
    assert [w for w in words if w not in said] == []


def processes_of(words: str) -> set[int]:
    """Numbers of the processes with these words in their command lines, \\0 behind each."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and words in (entry / "cmdline").read_text(errors="replace"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def test_a_phase_that_is_killed_from_outside(changeable: Path, command: Command, restorer: str) -> None:
    running = command.start("run", "-q", "--restorer", restorer, "--repeat", "1", changeable, prefix=renamed("hang"))
    killed: set[int] = set()
    while running.poll() is None:
        # Asleep: it has been restored and hangs.
        for number in processes_of("/elsewhere\0") - killed:
            if process_state(number) == "S":
                os.kill(number, signal.SIGTERM)
                killed.add(number)
    _, said = running.communicate()
    assert killed and running.returncode == 12, said
    assert "was killed by SIGTERM; likely cause: " in said


def test_a_hanging_phase_dies_with_the_command(changeable: Path, command: Command, restorer: str) -> None:
    """Nobody is left who would notice a broken pipe: the agent must see that the command has gone."""
    with command.start(
        "run", "-q", "--restorer", restorer, "--repeat", "1", changeable, prefix=renamed("hang")
    ) as running:
        wait_for(lambda: any(process_state(n) == "S" for n in processes_of("/elsewhere\0")), "a restored process")
        running.kill()
    command.nothing_left(files=False)
    wait_for(lambda: not processes_of("/elsewhere\0"), "the end of the restored process", 5)
    shutil.rmtree(next(command.temporary.iterdir()))


# -- files


def records(path: Path, count: int) -> None:
    path.write_text("".join(f"{n:063d}\n" for n in range(count)))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> Path:
    """A probe of a program that reads the file `records` beside it."""
    folder = tmp_path_factory.mktemp("reader")
    records(folder / "records", 90_000)
    (folder / "here").touch()
    return built(folder, program("records"), stdin=str(folder / "records"))


@pytest.mark.slow
def test_input_is_the_probe_s_own(command: Command, reader: Path, restorer: str) -> None:
    """Standard input at its offset, the working folder, and contents that the node has changed since."""
    file = reader.with_name("records")
    records(file, 90_000)
    assert command("run", "-q", "--restorer", restorer, "--repeat", "2", reader).returncode == 0
    shown = command.json("show", reader)
    assert (str(file), "input") in {(f["path"], f["purpose"]) for f in shown["files"]}
    file.write_text("x" * 64)
    before = fingerprint(file)
    assert command("run", "-q", "--restorer", restorer, "--repeat", "2", reader).returncode == 0
    assert fingerprint(file) == before
    file.chmod(0o600)
    assert command("run", "-q", "--restorer", restorer, "--repeat", "1", reader).returncode == 0
    file.unlink()
    done = command("run", "-q", "--restorer", restorer, "--repeat", "1", reader)
    assert done.returncode == 0, done.stderr
    assert not file.exists()


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> Path:
    """A probe of a program that writes the file `results` beside it."""
    folder = tmp_path_factory.mktemp("writer")
    return built(folder, program("filewrite"), "200", folder / "results")


@pytest.mark.slow
def test_files_the_program_writes_stay_as_they_are(command: Command, writer: Path, restorer: str) -> None:
    target = writer.with_name("results")
    for contents in (b"somebody's results\n", b""):
        target.write_bytes(contents)
        target.chmod(0o640)
        before = fingerprint(target)
        done = command("run", "-q", "--restorer", restorer, "--repeat", "3", writer)
        assert done.returncode == 0, done.stderr
        assert fingerprint(target) == before


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> Path:
    """A probe of a program that prints as it goes."""
    return built(tmp_path_factory.mktemp("chatty"), program("fileread"), "60")


@pytest.mark.slow
def test_output_stays_out_of_ours(command: Command, chatty: Path, restorer: str) -> None:
    done = command("run", "--restorer", restorer, "--repeat", "1", chatty)
    assert done.returncode == 0
    for line in (done.stdout + done.stderr).splitlines():
        assert not line.startswith(("fileread", "count")), line


# -- other programs, libraries and processors at the same paths


def at_path(original: Path | str, other: Path) -> list[str]:
    """A prefix that shows the file `other` at the path `original`."""
    return in_mounts(f"mount --bind '{other}' '{original}'")


def and_empty(folder: Path) -> list[str]:
    """A prefix whose command fails where it leaves something in `folder`."""
    return ["sh", "-c", f'"$@"; status=$?; [ -z "$(ls -A \'{folder}\')" ] || exit 99; exit $status', "sh"]


def test_another_program_at_its_path(
    sample: Sample, command: Command, tmp_path: Path, program: MakeProgram, restorer: str
) -> None:
    for name in ("short", "matmul"):
        done = command(
            "run",
            "-q",
            "--restorer",
            restorer,
            "--repeat",
            "1",
            sample.path,
            prefix=at_path(sample.argv[0], program(name)),
        )
        assert done.returncode == 0, done.stderr


def test_another_library_at_its_path(sample: Sample, command: Command, tmp_path: Path, restorer: str) -> None:
    library = next(f["path"] for f in sample.described["files"] if Path(f["path"]).name.startswith("libc.so"))
    other = tmp_path / "libc"
    other.write_bytes(Path(library).read_bytes() + b"another build")
    other.chmod(0o644)
    done = command("run", "-q", "--restorer", restorer, "--repeat", "1", sample.path, prefix=at_path(library, other))
    assert done.returncode == 0, done.stderr


def test_the_program_is_not_there(sample: Sample, command: Command, tmp_path: Path, restorer: str) -> None:
    """Neither it nor its folder: the probe's copy is shown there to CRIU alone."""
    folder = Path(sample.argv[0]).parent
    for empty in (folder, folder.parent):
        prefix = in_mounts(f"mount -t tmpfs none '{empty}'")
        done = command(
            "run", "-q", "--restorer", restorer, "--repeat", "1", sample.path, prefix=[*prefix, *and_empty(empty)]
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def homeless(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> tuple[Path, Path]:
    """A probe, and the folder that its program worked in, which is gone."""
    folder = tmp_path_factory.mktemp("home") / "inner"
    folder.mkdir()
    path = built(folder, program("nbody"), "120").rename(folder.with_name("moved.probe"))
    shutil.rmtree(folder)
    return path, folder


def test_the_working_folder_is_not_there(command: Command, homeless: tuple[Path, Path], restorer: str) -> None:
    path, folder = homeless
    done = command("run", "-q", "--restorer", restorer, "--repeat", "1", path)
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


def test_a_lesser_processor(sample: Sample, command: Command, tmp_path: Path) -> None:
    assert "avx2" in sample.described["cpu_features"], "the C library's AVX2 functions count as used"
    fake = tmp_path / "cpuinfo"
    fake.write_text(re.sub(r"\bavx2\b", "", Path("/proc/cpuinfo").read_text()))
    # Asked to restore, it would end with exit status 9.
    environment = criu_script(tmp_path / "criu", 'case " $* " in *" restore "*) exit 1 ;; esac; exec $REAL "$@"')
    said = command.refused(
        14,
        "run",
        "-q",
        "--restorer",
        "criu",
        sample.path,
        prefix=at_path("/proc/cpuinfo", fake),
        environment=environment,
    )
    assert "lacks avx2" in said and "--isa" in said
