# SPDX-License-Identifier: Apache-2.0
"""A probe needs no file of the node it runs on, and changes none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Command, in_mounts
from programs import build, symbols
from regions import captured_regions
from tracing import compile_small

from checkpoint.criu.tool import find_criu
from checkpoint.errors import PhaseFailed, ProbeFileDamaged
from checkpoint.restore.criu_restore import time_phase
from probe.candidates.local import run as run_probe
from probe.candidates.result import RunResult
from probe.formats.choices import SelectionOptions
from probe.formats.manifest import OUTPUT
from probe.pipeline.build import build as build_probe
from probe.pipeline.options import BuildOptions
from reducer.archive import ContainedFile, PhaseCheckpoint, write_probe
from reducer.unpack import open_probe

ROOT = Path(__file__).parents[3]


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below a folder: mode, owner, time of change and contents."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        contents = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, contents)
    return found


@pytest.fixture(scope="module")
def home(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program: itself, its library, its input; and its probe, household.probe, beside the folder."""
    folder = tmp_path_factory.mktemp("household") / "home"
    # Of permission bits that no folder made on the way would have.
    folder.mkdir()
    folder.chmod(0o3710)
    program = build("household", builds)
    for name in ("household", "libown.so"):
        shutil.copy(program.parent / name, folder / name)
    (folder / "input").write_text("".join(f"{n:063d}\n" for n in range(100)))
    # Of a single repeat a neighbour's burst makes a phase that is refused.
    options = BuildOptions(interval=0.02, runs=1, repeats=7, selection=SelectionOptions(max_phases=2))
    build_probe([str(folder / "household"), "500"], folder.parent / "household.probe", options=options, cwd=str(folder))
    return folder


@pytest.fixture
def away(home: Path) -> Iterator[Path]:
    """The same path, with nothing there."""
    aside = home.with_name("aside")
    home.rename(aside)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        aside.rename(home)


def all_phases_lived(result: RunResult) -> bool:
    return bool(result.phases) and all(phase.times for phase in result.phases)


def test_the_probe_holds_what_the_phases_need(home: Path) -> None:
    with open_probe(home.parent / "household.probe") as archive:
        held = {file.path: file.purpose for file in archive.files}
        phases = len(archive.phases)
    assert held[str(home / "household")] == "program"
    assert held[str(home / "libown.so")] == "library"
    assert held[str(home / "input")] == "input"
    # Its own intermediate file is read, and was written a moment before: each phase has the contents of its time.
    assert str(home / "notes") not in held
    private = {path for path, purpose in held.items() if purpose == OUTPUT}
    assert {Path(path).name for path in private} == {"notes", "output"} and len(private) == 2 * phases


def test_nothing_of_the_node_is_needed_and_nothing_is_made(home: Path, away: Path) -> None:
    before = snapshot(home.parent)
    assert all_phases_lived(run_probe(home.parent / "household.probe", repeats=3))
    assert snapshot(home.parent) == before and not away.exists()


def test_what_is_there_instead_is_not_changed(home: Path, away: Path) -> None:
    away.mkdir()
    (away / "household").write_text("#!/bin/sh\nexit 1\n")
    (away / "libown.so").write_bytes(b"another library")
    (away / "input").write_text("another input\n")
    (away / "input").chmod(0o604)
    (away / "output").write_text("somebody's results\n")
    (away / "output").chmod(0o400)
    (away / "notes").write_text("somebody's notes\n")
    (away / "output.done").write_text("more of them\n")
    (away / "unrelated").mkdir()
    before = snapshot(home.parent)
    assert all_phases_lived(run_probe(home.parent / "household.probe", repeats=2))
    assert snapshot(home.parent) == before


def test_on_the_reference_node_everything_stays_too(home: Path) -> None:
    before = snapshot(home.parent)
    assert all_phases_lived(run_probe(home.parent / "household.probe", repeats=2))
    assert snapshot(home.parent) == before


@pytest.mark.parametrize("options", ["rw", "ro"])
def test_a_file_system_below_the_root_stays_as_it_is(options: str, home: Path, away: Path, tmp_path: Path) -> None:
    """Its folder lies on a file system of its own, without the program's files, or may not be written at all."""
    away.mkdir()
    command = Command(tmp_path / "command")
    listing = tmp_path / "listing"
    then = f"\"$@\"; status=$?; find '{away}' -mindepth 1 > '{listing}'; exit $status"
    prefix = [*in_mounts(f"mount -t tmpfs -o {options} other '{away}'"), "sh", "-c", then, "sh"]
    done = command("run", "--repeat", "2", home.parent / "household.probe", prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout and listing.read_text() == ""


# Adds, changes and removes files in its region, through relative and absolute paths; none of it may last.
VANDAL = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
static volatile int sink;
#define PLACE(name) __attribute__((noipa)) static void name(void) \
    { __asm__ volatile(".globl site_" #name "\nsite_" #name ": movl $0x51735173, %0" : "=m"(sink)); }
PLACE(warm)
PLACE(start)
PLACE(end)
static void require(int condition) { if (!condition) __builtin_trap(); }
int main(int argc, char **argv)
{
    char text[16] = {0};
    require(argc == 2 && chdir(argv[1]) == 0);
    int input = open("input", O_RDONLY);
    warm();
    start();
    // No overlay between the program and what it reads most, and no way through to the node's file.
    struct statfs system;
    require(fstatfs(input, &system) == 0 && system.f_type != 0x794c7630 && open("input", O_RDWR) < 0);
    require(statfs("diary", &system) == 0 && system.f_type == 0x794c7630);
    int file = open("added", O_WRONLY | O_CREAT | O_EXCL, 0600);
    require(write(file, "x", 1) == 1 && close(file) == 0);
    file = open("diary", O_RDWR | O_APPEND);
    require(read(file, text, sizeof text) == 8 && !strcmp(text, "dear me\n"));
    require(write(file, "no\n", 3) == 3 && close(file) == 0);
    require(truncate("short", 0) == 0 && chmod("short", 0777) == 0);
    require(unlink("gone") == 0 && rename("moved", "elsewhere") == 0 && mkdir("folder", 0700) == 0);
    require(symlink("diary", "link") == 0 && rmdir("empty") == 0);
    end();
    return 0;
}
"""


def test_a_region_may_do_what_it_wants_to_files(tmp_path: Path) -> None:
    program = compile_small(tmp_path, "vandal", VANDAL)
    assert {"site_warm", "site_start", "site_end"} <= symbols(program).keys()
    town = tmp_path / "town"
    (town / "empty").mkdir(parents=True)
    (town / "diary").write_text("dear me\n")
    for name in ("short", "gone", "moved", "input"):
        (town / name).write_text(name)
    (job,) = captured_regions(program, str(town), folder=tmp_path / "captured")
    # The run it was captured from went no further than its region's start.
    before = snapshot(town)
    # Each repeat finds the files as the first one did.
    assert len(time_phase(job, find_criu(), repeats=3, scratch=tmp_path)) == 3
    assert snapshot(town) == before
    (town / "gone").unlink()
    with pytest.raises(PhaseFailed, match="SIGILL"):
        time_phase(job, find_criu(), repeats=1, scratch=tmp_path)


COVER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from checkpoint.restore.private_root import cover, mount
base = Path(sys.argv[2])
mount("tmpfs", str(base), "tmpfs", 0)
for name in ("low", "u1", "w1", "u2", "w2", "one", "two", "target", "layers"):
    (base / name).mkdir()
(base / "low" / "file").write_text("kept")
(base / "low").chmod(0o1777)
for number, lower in (("1", "low"), ("2", "one")):
    where = {"1": "one", "2": "two"}[number]
    options = "lowerdir=%s,upperdir=%s,workdir=%s" % (base / lower, base / f"u{number}", base / f"w{number}")
    mount("overlay", str(base / where), "overlay", 0, options)
for source, layer in (("low", "a,b:c"), ("one", "b"), ("two", "c")):
    covered = bool(cover(str(base / source), str(base / "target"), str(base / "layers" / layer)))
    try:
        (base / "target" / "file").write_text("changed")
        wrote = True
    except OSError:
        wrote = False
    mode = oct((base / "target").stat().st_mode & 0o7777)
    print(covered, wrote, (base / source / "file").read_text(), mode if source == "low" else "")
"""


def test_what_no_overlay_can_cover_is_read_only(tmp_path: Path) -> None:
    """The kernel stacks two overlays and no third."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-I", "-c", COVER]
    done = subprocess.run([*command, str(ROOT), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True True kept 0o1777", "True True kept ", "False False kept "], done.stderr


# -- hostile probes


def rewritten(source: Path, target: Path, folder: Path, more: list[ContainedFile], **changes: Any) -> Path:
    """The probe at `source` with other entries of its manifest and the files `more` besides its own."""
    with open_probe(source) as archive:
        phases = []
        for phase in archive.phases:
            archive.extract_phase(phase.id, folder / f"phase-{phase.id}")
            phases.append(PhaseCheckpoint(phase.id, folder / f"phase-{phase.id}"))
        kept = []
        for number, file in enumerate(archive.files):
            archive.extract_file(file.sha256, folder / str(number), file.mode)
            kept.append(ContainedFile(file.path, folder / str(number), file.mode, file.purpose))
        write_probe(target, {**archive.manifest, **changes}, phases, [*kept, *more])
    return target


def test_a_hostile_manifest_changes_nothing_outside_its_namespace(home: Path, tmp_path: Path) -> None:
    victims = tmp_path / "victims"
    victims.mkdir()
    for name in ("contained", "private", "output", "linked"):
        (victims / name).write_text(name)
    (victims / "link").symlink_to(victims / "linked")
    mine = tmp_path / "mine"
    mine.write_text("hostile")
    probe = home.parent / "household.probe"
    with open_probe(probe) as archive:
        manifest = archive.manifest
    private = manifest["files"]["private"]
    paths = ["private", "link", "new", "deep/below/new", "../victims/private", "folder/../../victims/output"]
    hostile = rewritten(
        probe,
        tmp_path / "hostile.probe",
        tmp_path / "unpacked",
        [ContainedFile(str(victims / name), mine, 0o644, "input") for name in ("contained", "added", "sub/added")],
        files={**manifest["files"], "private": [*private, *({**private[0], "path": str(victims / p)} for p in paths)]},
        program={
            **manifest["program"],
            "outputs": [*manifest["program"]["outputs"], str(victims / "output"), "/etc/passwd", "/../etc/passwd"],
            "cwd": str(victims / "new" / "working" / "folder"),
        },
    )
    before = {**snapshot(victims), **snapshot(home.parent)}
    etc = {entry.name: entry.lstat().st_mtime_ns for entry in Path("/etc").iterdir()}
    try:
        run_probe(hostile, repeats=1)
    except Exception as error:
        assert type(error).__module__ == "checkpoint.errors", repr(error)
    assert {**snapshot(victims), **snapshot(home.parent)} == before
    assert {entry.name: entry.lstat().st_mtime_ns for entry in Path("/etc").iterdir()} == etc


@pytest.mark.parametrize("identifier", ["../../escaped", 77, None, [1]])
def test_phases_of_other_names_are_refused(identifier: Any, home: Path, tmp_path: Path) -> None:
    probe = home.parent / "household.probe"
    with open_probe(probe) as archive:
        first, *others = archive.manifest["phases"]
    odd = rewritten(
        probe, tmp_path / "odd.probe", tmp_path / "unpacked", [], phases=[{**first, "id": identifier}, *others]
    )
    with pytest.raises(ProbeFileDamaged, match="phase"):
        run_probe(odd, repeats=1)


def test_a_hostile_output_name_is_only_a_name(home: Path) -> None:
    """CRIU is told which file of the checkpoint to replace, not what to open."""
    path = home.parent / "household.probe"
    with open_probe(path) as archive:
        names = archive.manifest["program"]["outputs"]
    assert all(name.endswith(("capture.stdout", "capture.stderr")) for name in names) and len(names) == 2
    assert not any(Path(name).exists() for name in names)
