# SPDX-License-Identifier: Apache-2.0
"""Probes on a node that differs from the one they were built on, and phases that fail there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from command import Command, criu_script, in_mounts
from conftest import MakeProgram, Sample

RENAMED = ["unshare", "--uts", "sh", "-c", 'echo elsewhere > /proc/sys/kernel/hostname; exec "$@"', "sh"]
"""A prefix for a node of another name."""


def built(
    command: Command, folder: Path, *argv: str | Path, name: str = "built.probe", options: tuple[str, ...] = ()
) -> Path:
    path = folder / name
    arguments = ["build", "-q", "--interval", "20ms", "--max-phases", "2", *options, "-o", path, "--", *argv]
    done = command(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return path


def fingerprint(path: Path) -> tuple[str, int, int]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode, path.stat().st_mtime_ns


# -- phases that fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("illegal", ["SIGILL", "lacks an instruction", "--isa"]),
        ("segment", ["SIGSEGV", "memory"]),
        ("kill", ["SIGKILL", "memory"]),
        ("exit", ["exited with status 5"]),
    ],
)
def test_a_phase_that_dies(how: str, words: list[str], command: Command, tmp_path: Path, program: MakeProgram) -> None:
    path = built(command, tmp_path, program("elsewhere"), "300", how)
    assert command("run", "-q", "--repeat", "1", path).returncode == 0
    said = command.refused(12, "run", "-q", "--repeat", "1", path, prefix=RENAMED)
    assert re.search(r"phase \d", said)
    assert [w for w in words if w not in said] == []


@pytest.mark.slow
def test_a_phase_that_is_killed_from_outside(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    path = built(command, tmp_path, program("elsewhere"), "300", "hang")
    running = command.start("run", "-q", "--repeat", "1", path, prefix=RENAMED)
    killed: set[int] = set()

    def restored() -> list[int]:
        # A restored process has the name of its program before it has all of its memory: let it settle.
        return [n for n, line in command.processes().items() if line.startswith(str(program("elsewhere")))]

    while running.poll() is None:
        for number in restored():
            if number not in killed and Path(f"/proc/{number}/stat").read_text().split()[2] == "S":
                os.kill(number, signal.SIGTERM)
                killed.add(number)
    _, said = running.communicate()
    assert killed and running.returncode == 12, said
    assert "was killed by SIGTERM; likely cause: " in said
    command.nothing_left()


# -- files


def records(path: Path, count: int) -> None:
    path.write_text("".join(f"{n:063d}\n" for n in range(count)))


@pytest.mark.slow
def test_input_is_the_probe_s_own(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """Standard input at its offset, the working folder, and contents that the node has changed since."""
    records(tmp_path / "records", 90_000)
    (tmp_path / "here").touch()
    path = built(command, tmp_path, program("records"), options=("--stdin", str(tmp_path / "records")))
    assert command("run", "-q", "--repeat", "2", path).returncode == 0
    shown = command.json("show", path)
    assert (str(tmp_path / "records"), "input") in {(f["path"], f["purpose"]) for f in shown["files"]}
    (tmp_path / "records").write_text("x" * 64)
    before = fingerprint(tmp_path / "records")
    assert command("run", "-q", "--repeat", "2", path).returncode == 0
    assert fingerprint(tmp_path / "records") == before
    (tmp_path / "records").chmod(0o600)
    assert command("run", "-q", "--repeat", "1", path).returncode == 0
    (tmp_path / "records").unlink()
    done = command("run", "-q", "--repeat", "1", path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "records").exists()


@pytest.mark.slow
def test_files_the_program_writes_stay_as_they_are(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    target = tmp_path / "results"
    path = built(command, tmp_path, program("filewrite"), "200", target)
    for contents in (b"somebody's results\n", b""):
        target.write_bytes(contents)
        target.chmod(0o640)
        before = fingerprint(target)
        done = command("run", "-q", "--repeat", "3", path)
        assert done.returncode == 0, done.stderr
        assert fingerprint(target) == before


@pytest.mark.slow
def test_output_stays_out_of_ours(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    chatty = program("fileread")
    path = built(command, tmp_path, chatty, "60")
    done = command("run", "--repeat", "1", path)
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


def test_another_program_at_its_path(sample: Sample, command: Command, tmp_path: Path, program: MakeProgram) -> None:
    for name in ("short", "matmul"):
        done = command("run", "-q", "--repeat", "1", sample.path, prefix=at_path(sample.argv[0], program(name)))
        assert done.returncode == 0, done.stderr


def test_another_library_at_its_path(sample: Sample, command: Command, tmp_path: Path) -> None:
    library = next(f["path"] for f in sample.described["files"] if Path(f["path"]).name.startswith("libm.so"))
    other = tmp_path / "libm"
    other.write_bytes(Path(library).read_bytes() + b"another build")
    other.chmod(0o644)
    done = command("run", "-q", "--repeat", "1", sample.path, prefix=at_path(library, other))
    assert done.returncode == 0, done.stderr


def test_the_program_is_not_there(sample: Sample, command: Command, tmp_path: Path) -> None:
    """Neither it nor its folder: the probe's copy is shown there to CRIU alone."""
    folder = Path(sample.argv[0]).parent
    for empty in (folder, folder.parent):
        prefix = in_mounts(f"mount -t tmpfs none '{empty}'")
        done = command("run", "-q", "--repeat", "1", sample.path, prefix=[*prefix, *and_empty(empty)])
        assert done.returncode == 0, done.stderr


def test_the_working_folder_is_not_there(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = built(command, folder, program("nbody"), "120").rename(tmp_path / "moved.probe")
    shutil.rmtree(folder)
    done = command("run", "-q", "--repeat", "1", path)
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


def test_a_lesser_processor(sample: Sample, command: Command, tmp_path: Path) -> None:
    assert "avx2" in sample.described["cpu_features"], "the C library's AVX2 functions count as used"
    fake = tmp_path / "cpuinfo"
    fake.write_text(re.sub(r"\bavx2\b", "", Path("/proc/cpuinfo").read_text()))
    diary = tmp_path / "diary"
    environment = criu_script(tmp_path / "criu", f'echo "$@" >> {diary}\nexec $REAL "$@"')
    said = command.refused(14, "run", "-q", sample.path, prefix=at_path("/proc/cpuinfo", fake), environment=environment)
    assert "lacks avx2" in said and "--isa" in said
    assert not diary.exists() or "restore" not in diary.read_text()
