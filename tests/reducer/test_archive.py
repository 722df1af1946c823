# SPDX-License-Identifier: Apache-2.0
"""Probes come back as they went in, or are refused: never a wrong result, never half a file."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_checkpoint import WORKER, dump_process
from small_archive import contents, make_checkpoint, small, unpack_each

from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.pagemap import write_pagemap
from checkpoint.criu.tool import find_criu
from checkpoint.errors import ProbeFileDamaged
from checkpoint.linux import PAGE_SIZE
from reducer.archive import ContainedFile, PhaseCheckpoint, open_probe, write_probe
from reducer.member_table import read_table

__all__ = ["small"]

REPOSITORY = Path(__file__).parents[2]


def test_everything_comes_back(small: Path, tmp_path: Path) -> None:
    with open_probe(small) as probe:
        probe.verify()
        assert probe.manifest == {"program": "tool", "et_ref_seconds": 1.5}
        assert [phase.id for phase in probe.phases] == [5, 2]
        assert probe.size_bytes == small.stat().st_size
        assert probe.raw_bytes == 8 * PAGE_SIZE + 4 + 4 + len(b"memory map")
        assert probe.data_names == ("profile.json",) and probe.read_data("profile.json") == b"[1,2,3]"
        # The later phase first: it needs pages of the earlier one.
        for phase_id, name in ((2, "second"), (5, "first")):
            probe.extract_phase(phase_id, tmp_path / "out" / name)
            assert contents(tmp_path / "out" / name) == contents(tmp_path / name)
        assert {file.path: file.mode for file in probe.files} == {
            "/usr/bin/tool": 0o755,
            "/opt/tool": 0o644,
        }
        probe.extract_file(probe.files[0].sha256, tmp_path / "copy", mode=0o755)
        assert (tmp_path / "copy").read_bytes() == b"#!tool" * 9
        assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o755


def test_equal_pages_and_files_are_stored_once_with_their_first_phase(small: Path) -> None:
    with small.open("rb") as file:
        table = read_table(file.read, "small")
    assert [table.new_pages(position) for position in (0, 1)] == [3, 1]
    assert [name.split("/")[0] for name in table.members] == ["data", "file"] + 6 * ["phase"]


def test_a_probe_holds_a_programs_memory_and_is_for_its_owner_only(small: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        write_probe(small, {}, [PhaseCheckpoint(0, tmp_path / "first")])
        assert stat.S_IMODE(small.stat().st_mode) == 0o600
        with open_probe(small) as probe:
            probe.extract_phase(0, tmp_path / "out")
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {0o600}
    finally:
        os.umask(old)


def test_sizes_are_reported(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [1, 1, 0, 2])
    sizes = write_probe(tmp_path / "p", {}, [PhaseCheckpoint(0, folder)])
    assert sizes.size_bytes == (tmp_path / "p").stat().st_size
    assert (sizes.raw_bytes, sizes.file_bytes) == (4 * PAGE_SIZE + 4, 0)
    assert (sizes.pages, sizes.zero_pages, sizes.distinct_pages) == (4, 1, 2)


def test_the_same_input_makes_the_same_probe(small: Path, tmp_path: Path) -> None:
    checkpoints = [PhaseCheckpoint(5, tmp_path / "first"), PhaseCheckpoint(2, tmp_path / "second")]
    for name in ("a", "b"):
        write_probe(tmp_path / name, {"x": 1}, checkpoints)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_real_checkpoint_comes_back_and_shrinks(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(bytes(range(256)) * 100)
    folder = dump_process(WORKER, [tmp_path / "input", tmp_path / "target"], tmp_path / "images")
    path = tmp_path / "real.probe"
    sizes = write_probe(path, {}, [PhaseCheckpoint(1, folder), PhaseCheckpoint(2, folder)])
    assert sizes.size_bytes < sizes.raw_bytes / 4
    with open_probe(path) as probe:
        probe.verify()
        probe.extract_phase(2, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(folder)
    found, original = read_checkpoint(tmp_path / "out"), read_checkpoint(folder)
    assert (found.page_runs, found.files) == (original.page_runs, original.files)
    pages = tmp_path / "out" / "pages-1.img"
    # The worker's 256 pages of zeros are holes now.
    assert pages.stat().st_blocks * 512 <= pages.stat().st_size - 256 * PAGE_SIZE


RESTORE = """
import os, signal, subprocess, sys, time
pid = int(sys.argv[1])
done = subprocess.run(sys.argv[2:], capture_output=True, text=True)
assert done.returncode == 0, done.stdout + done.stderr
state = lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]
deadline = time.monotonic() + 20
while state() != "T":  # CRIU may return a moment before the process stands still
    assert time.monotonic() < deadline, state()
    time.sleep(0.01)
os.kill(pid, signal.SIGCONT)
used = lambda: sum(map(int, open(f"/proc/{pid}/schedstat").read().split()[2:]))
before, deadline = used(), time.monotonic() + 20
while used() < before + 3:
    assert state() in "RS", state()
    assert time.monotonic() < deadline
    time.sleep(0.01)
print("runs", state() in "RS")
"""


def test_criu_restores_what_came_back(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(bytes(range(256)) * 100)
    folder = dump_process(WORKER, [tmp_path / "input", tmp_path / "target"], tmp_path / "images")
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(1, folder)])
    out = tmp_path / "out"
    with open_probe(tmp_path / "x.probe") as probe:
        probe.extract_phase(1, out)
    images = read_checkpoint(out)
    # Both spellings of a run's length, as every rewritten page map has them.
    write_pagemap(out / f"pagemap-{images.pid}.img", images.pages_id, images.page_runs)
    criu = [*find_criu().command, "restore", "--no-default-config", "-d", "-D", str(out), "-o", "restore.log"]
    spaces = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*spaces, sys.executable, "-c", RESTORE, str(images.pid), *criu],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "runs True\n", done.stderr + (out / "restore.log").read_text()


PHASES = st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=3)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MANIFESTS = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), FINITE))


@given(PHASES, st.binary(max_size=50), st.binary(max_size=50), MANIFESTS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_round_trip(
    tmp_path: Path, phases: list[list[int]], image: bytes, file: bytes, manifest: dict[str, Any]
) -> None:
    work = tmp_path / "work"
    try:
        folders = [make_checkpoint(work / str(n), pages, x=image) for n, pages in enumerate(phases)]
        (work / "files").mkdir(parents=True)
        (work / "files" / "f").write_bytes(file)
        write_probe(
            work / "p",
            manifest,
            [PhaseCheckpoint(n, folder) for n, folder in enumerate(folders)],
            [ContainedFile("/f", work / "files" / "f", 0o644, "input")],
        )
        with open_probe(work / "p") as probe:
            probe.verify()
            assert probe.manifest == manifest
        found = unpack_each(work / "p", work / "out")
        assert found.pop("/f") == file
        assert found == {
            f"{n}/{name}": data for n, folder in enumerate(folders) for name, data in contents(folder).items()
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)


def test_folders_that_hold_no_checkpoint_are_refused(tmp_path: Path) -> None:
    def pack(folder: Path) -> None:
        write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, folder)])

    (tmp_path / "empty").mkdir()
    with pytest.raises(ProbeFileDamaged, match="empty holds no checkpoint"):
        pack(tmp_path / "empty")
    odd = make_checkpoint(tmp_path / "odd", [1])
    with (odd / "pages-1.img").open("ab") as out:
        out.write(b"x")
    with pytest.raises(ProbeFileDamaged, match=r"pages-1\.img does not consist of whole pages"):
        pack(odd)
    child = make_checkpoint(tmp_path / "child", [1])
    (child / "parent").symlink_to(odd)
    with pytest.raises(ProbeFileDamaged, match="incremental"):
        pack(child)
    linked = make_checkpoint(tmp_path / "linked", [1])
    (linked / "mm-7.img").symlink_to(odd / "core-7.img")
    with pytest.raises(ProbeFileDamaged, match=r"mm-7\.img is not a regular file"):
        pack(linked)
    assert not list(tmp_path.glob("*x.probe*"))


def test_what_no_probe_can_hold_is_a_programming_error(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [1])
    one = PhaseCheckpoint(0, folder)
    tool = ContainedFile("/c", folder / "core-7.img", 0o644, "input")
    relative = ContainedFile("c/../d", folder / "core-7.img", 0o644, "input")
    for arguments in (
        ({}, [one, one]),
        ({}, [one], [tool, tool]),
        ({}, [one], [relative]),
        ({}, [one], [], {"../data": b""}),
        ({"x": float("nan")}, [one]),
    ):
        with pytest.raises(ValueError):
            write_probe(tmp_path / "x.probe", *arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("*x.probe*"))


def test_reading_needs_the_standard_library_alone(small: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.path = [sys.argv[1], *(item for item in sys.path if "site-packages" not in item)]
from reducer.unpack import open_probe
with open_probe(Path(sys.argv[2])) as probe:
    probe.verify()
    probe.extract_phase(2, Path(sys.argv[3]))
own = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(own - {"__main__", "__mp_main__"}))
"""
    arguments = [str(REPOSITORY), str(small), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, *arguments], capture_output=True, text=True)
    assert done.stdout == "['checkpoint', 'reducer']\n", done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "second")


@pytest.mark.parametrize("ends", [b"", b"end"])
def test_a_file_of_zeros_takes_no_room(ends: bytes, tmp_path: Path) -> None:
    made, phase = tmp_path / "made", make_checkpoint(tmp_path / "phase", [1])
    made.write_bytes(b"start".ljust(4096, b"\0") + bytes(64 << 20) + ends)
    file = ContainedFile("/out", made, 0o100600, "output")
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, phase)], [file])
    assert (tmp_path / "x.probe").stat().st_size < 1 << 20
    with open_probe(tmp_path / "x.probe") as probe:
        probe.extract_file(probe.files[0].sha256, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == made.read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 < 4 << 20
