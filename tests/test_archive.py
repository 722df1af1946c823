# SPDX-License-Identifier: Apache-2.0
"""Probes come back as they went in, or are refused: never a wrong result, never half a file."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_checkpoint import WORKER, dump_process

from checkpoint.criu import find_criu
from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.images import read_checkpoint
from checkpoint.pagemap import write_pagemap
from reducer import archive
from reducer.archive import ContainedFile, PhaseCheckpoint, open_probe, write_probe
from reducer.member_table import FORMAT_VERSION, HEADER, HEADER_SIZE, MAGIC, PAGE_SIZE, read_table
from reducer.unpack import inflate_member

REPOSITORY = Path(__file__).resolve().parent.parent


def page(content: int) -> bytes:
    return content.to_bytes(8, "little") * (PAGE_SIZE // 8)


def make_checkpoint(folder: Path, pages: list[int], **images: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / "pages-1.img").write_bytes(b"".join(map(page, pages)))
    for name, content in {"core-7": b"core", **images}.items():
        (folder / f"{name}.img").write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.img")}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A probe of two phases that share pages, one file under two paths, and one data member."""
    (tmp_path / "tool").write_bytes(b"#!tool" * 9)
    first = make_checkpoint(tmp_path / "first", [1, 0, 2, 3], mm=b"memory map")
    second = make_checkpoint(tmp_path / "second", [3, 4, 0, 1])
    write_probe(
        tmp_path / "small.probe",
        {"program": "tool", "et_ref_seconds": 1.5},
        [PhaseCheckpoint(5, first), PhaseCheckpoint(2, second)],
        [
            ContainedFile("/usr/bin/tool", tmp_path / "tool", 0o100755, "program"),
            ContainedFile("/opt/tool", tmp_path / "tool", 0o100644, "input"),
        ],
        {"profile.json": b"[1,2,3]"},
    )
    return tmp_path / "small.probe"


def use_everything(path: Path, folder: Path) -> None:
    """Open, verify and unpack all of a probe into `folder`, and leave nothing there."""
    try:
        with open_probe(path) as probe:
            probe.verify()
            for phase in probe.phases:
                probe.extract_phase(phase.id, folder / str(phase.id))
            for file in probe.files:
                probe.extract_file(file.sha256, folder / "file")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack_each(path: Path, folder: Path) -> dict[str, bytes]:
    """What comes out without verifying first: damage must be found by each step on its own."""
    found: dict[str, bytes] = {}
    folder.mkdir()
    with open_probe(path) as probe:
        for phase in probe.phases:
            probe.extract_phase(phase.id, folder / str(phase.id))
            found.update({f"{phase.id}/{name}": data for name, data in contents(folder / str(phase.id)).items()})
        for file in probe.files:
            probe.extract_file(file.sha256, folder / "file")
            found[file.path] = (folder / "file").read_bytes()
        for name in probe.data_names:
            found[name] = probe.read_data(name)
    return found


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and make its checksum right again, as an attacker would."""
    whole = path.read_bytes()
    _, _, size, _ = HEADER.unpack_from(whole)
    document = json.loads(whole[HEADER_SIZE : HEADER_SIZE + size])
    change(document)
    seal(path, json.dumps(document).encode(), whole[HEADER_SIZE + size :])


def seal(path: Path, text: bytes, members: bytes, version: int = FORMAT_VERSION) -> None:
    head = HEADER.pack(MAGIC, version, len(text), HEADER_SIZE + len(text) + len(members))
    path.write_bytes(head + hashlib.sha256(head + text).digest() + text + members)


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


def test_a_probe_cut_off_at_any_byte_is_refused(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    cut = tmp_path / "cut.probe"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ProbeFileDamaged, match="not a probe file" if length < 8 else "cut off"):
            use_everything(cut, tmp_path / "out")


def test_a_flipped_bit_anywhere_is_refused(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    bad = tmp_path / "bad.probe"
    choose = random.Random(7)
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1 << choose.randrange(8)
        bad.write_bytes(changed)
        with pytest.raises(ProbeFileDamaged), open_probe(bad) as probe:
            probe.verify()


def test_a_flipped_bit_never_comes_out_of_a_probe_that_was_not_verified(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    bad = tmp_path / "bad.probe"
    right = unpack_each(small, tmp_path / "right")
    _, _, manifest_size, _ = HEADER.unpack_from(whole)
    for position in range(HEADER_SIZE + manifest_size, len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        bad.write_bytes(changed)
        with pytest.raises(ProbeFileDamaged):
            assert unpack_each(bad, tmp_path / "out") == right
        shutil.rmtree(tmp_path / "out")


@given(data=st.binary(max_size=200).filter(lambda data: not data.startswith(MAGIC)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_foreign_files_are_told_apart(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "foreign").write_bytes(data)
    with pytest.raises(ProbeFileDamaged, match="not a probe file"):
        open_probe(tmp_path / "foreign")


def test_files_that_cannot_be_a_probe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(ProbeFileDamaged, match="not a regular file"):
            open_probe(tmp_path / name)
    with pytest.raises(StorageError, match=r"missing\.probe: No such file"):
        open_probe(tmp_path / "missing.probe")


def test_an_unknown_version_is_named(small: Path) -> None:
    seal(small, b'{"new": 1}', b"", version=9)
    with pytest.raises(ProbeFileDamaged, match="format version 9, this program reads version 1"):
        open_probe(small)


def test_garbage_behind_the_end_is_refused(small: Path) -> None:
    with small.open("ab") as out:
        out.write(b"x")
    with pytest.raises(ProbeFileDamaged, match="1 bytes follow its end"):
        open_probe(small)


def change_member(number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["members"][number].update(values)


def change_phase(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["phases"][0].update(values)


def change_file(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["files"][0].update(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (change_member(0, name="../escape"), "name '../escape' is not allowed"),
        (change_member(0, name="/etc/passwd"), "is not allowed"),
        (change_member(0, name="a//b"), "is not allowed"),
        (change_member(0, name="a\n"), "is not allowed"),
        (change_member(0, name="x" * 300), "name of member 0"),
        (change_member(0, name=7), "name of member 0"),
        (change_member(0, name="phase/5/pages"), "is there twice"),
        (change_member(0, raw_size=-1), "raw_size"),
        (change_member(0, raw_size=True), "raw_size"),
        (change_member(0, raw_size=1.5), "raw_size"),
        (change_member(0, raw_size=2**60), "raw_size"),
        (change_member(0, raw_size=2**40), "more than is possible"),
        (change_member(0, compression="brotli"), "unknown compression 'brotli'"),
        (change_member(0, compression="none"), "two sizes"),
        (change_member(0, sha256="0" * 63), "not a checksum"),
        (change_member(0, stored_size=1), "more than is possible|members end"),
        (lambda document: document["phases"].append(document["phases"][0]), "a phase is there twice"),
        (change_phase(id=77), "phase 77 lacks its images"),
        (change_phase(id=-1), "id of a phase"),
        (change_phase(parts=[["../../core.img", 14]]), "not allowed"),
        (change_phase(parts=[["/etc/core.img", 14]]), "not allowed"),
        (change_phase(parts=[["core.txt", 14]]), "not allowed"),
        (change_phase(parts=[["a.img", 7], ["a.img", 7]]), "an image twice"),
        (change_phase(parts=[["pages-1.img", 14]]), "an image twice"),
        (change_phase(parts=[["a.img", 13]]), "do not fill"),
        (change_phase(parts="a.img"), "not a list"),
        (change_phase(page_images=[["pages-1.img"]]), "a name and a size"),
        (change_phase(page_images=[["pages-1.img", 2**53 - 1]]), "claims"),
        (change_file(path="relative"), "plain absolute"),
        (change_file(path="/a/../etc/shadow"), "plain absolute"),
        (change_file(path="//a"), "plain absolute"),
        (change_file(path="/"), "plain absolute"),
        (change_file(path="/a\0"), "plain absolute"),
        (change_file(path="/opt/tool"), "a file is there twice"),
        (change_file(mode=0o100755), "mode"),
        (change_file(sha256="0" * 64), "missing or of another size"),
        (change_file(size=1), "missing or of another size"),
        (lambda document: document.pop("members"), "members"),
        (lambda document: document.pop("manifest"), "manifest"),
        (lambda document: document["phases"].reverse(), "order"),
        (lambda document: document["members"].pop(), "lacks its index|members end"),
    ],
)
def test_a_manifest_made_to_harm_is_refused(small: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    rewrite(small, change)
    with pytest.raises(ProbeFileDamaged, match=says):
        open_probe(small)


@pytest.mark.parametrize("text", [b"[]", b"1", b"{", b"\xff", b"[" * 100000, b"1" * 10000, b"", b'{"members": {}}'])
def test_a_manifest_that_is_no_manifest_is_refused(small: Path, text: bytes) -> None:
    seal(small, text, b"")
    with pytest.raises(ProbeFileDamaged, match="is damaged"):
        open_probe(small)


def test_a_manifest_too_large_to_read_is_refused_unread(small: Path) -> None:
    whole = bytearray(small.read_bytes())
    struct.pack_into("<I", whole, 12, 2**32 - 1)
    small.write_bytes(whole)
    with pytest.raises(ProbeFileDamaged, match="manifest claims 4294967295 bytes"):
        open_probe(small)


def replace_member(path: Path, name: str, stored: bytes, raw_size: int) -> None:
    """Put other stored bytes in a member, with a right checksum."""
    with path.open("rb") as file:
        member = read_table(file.read, "x").members[name]
    whole = path.read_bytes()
    path.write_bytes(whole[: member.offset] + stored + whole[member.offset + member.stored_size :])
    values = {"raw_size": raw_size, "stored_size": len(stored), "sha256": hashlib.sha256(stored).hexdigest()}

    def change(document: dict[str, Any]) -> None:
        next(item for item in document["members"] if item["name"] == name).update(values)

    rewrite(path, change)


def test_a_decompression_bomb_stops_at_the_size_it_stated(small: Path) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    replace_member(small, "data/profile.json", bomb, 1000)
    got: list[bytes] = []
    with small.open("rb") as file:
        member = read_table(file.read, "x").members["data/profile.json"]
        file.seek(member.offset)
        with pytest.raises(ProbeFileDamaged, match="larger than 1000 bytes"):
            inflate_member(file.read, member, got.append, "x")
    assert sum(map(len, got)) <= 1000


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (gzip.compress(b"[1,2,3") , "does not inflate to 7"),
        (gzip.compress(b"[1,2,3]")[:-1], "does not inflate to 7"),
        (gzip.compress(b"[1,2,3]") + b"more", "does not inflate to 7|behind its end"),
        (gzip.compress(b"[1,2,3]") + bytes(1 << 19), "behind its end"),
        (b"no gzip at all", "does not inflate"),
    ],
)  # fmt: skip
def test_a_member_that_is_not_what_it_states_is_refused(small: Path, stored: bytes, says: str) -> None:
    replace_member(small, "data/profile.json", stored, 7)
    with open_probe(small) as probe, pytest.raises(ProbeFileDamaged, match=says):
        probe.read_data("profile.json")


def index_of(*runs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<II", *run) for run in runs)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (index_of((4, 1), (0, 3)), "refers to page 4 of 3"),
        (index_of((2, 4)), "refers to page 2 of 3"),
        (index_of((1, 1), (2**32 - 1, 1), (0, 2)), "refers to page 4294967295"),
        (index_of((1, 3)), "index of 3 pages, not 4"),
        (index_of((1, 3), (0, 2)), "index of 5 pages, not 4"),
        (index_of((1, 3), (0, 1), (0, 0)), "refers to page 0"),
        (index_of((1, 3), (0, 1)) + b"x", "index of 4 pages"),
        (b"", "index of 0 pages"),
    ],
)
def test_a_page_index_that_leaves_its_pages_is_refused(small: Path, tmp_path: Path, index: bytes, says: str) -> None:
    replace_member(small, "phase/5/index", gzip.compress(index), len(index))
    with open_probe(small) as probe:
        with pytest.raises(ProbeFileDamaged, match=says):
            probe.verify()
        with pytest.raises(ProbeFileDamaged, match=says):
            probe.extract_phase(5, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_with_other_contents_than_stated_is_refused(small: Path, tmp_path: Path) -> None:
    with open_probe(small) as probe:
        file = probe.files[0]
    replace_member(small, file.member, gzip.compress(b"?" * file.size), file.size)
    with open_probe(small) as probe:
        with pytest.raises(ProbeFileDamaged, match=r"/(usr/bin|opt)/tool has other contents"):
            probe.verify()
        with pytest.raises(ProbeFileDamaged, match="other contents"):
            probe.extract_file(file.sha256, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_a_probe_reads_from_a_pipe(small: Path) -> None:
    source = io.BytesIO(small.read_bytes())
    read = source.read
    table = read_table(read, "pipe")
    found: dict[str, bytes] = {}
    for member in table.members.values():
        pieces: list[bytes] = []
        inflate_member(read, member, pieces.append, "pipe")
        found[member.name] = b"".join(pieces)
    assert found["phase/5/pages"] == page(1) + page(2) + page(3)
    assert found["phase/2/pages"] == page(4)
    assert source.read() == b""


def test_unpacking_never_follows_or_overwrites(small: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "core-7.img").symlink_to(tmp_path / "victim")
    with open_probe(small) as probe:
        with pytest.raises(StorageError, match="not empty"):
            probe.extract_phase(5, tmp_path / "out")
        (tmp_path / "link").symlink_to(tmp_path / "victim")
        probe.extract_file(probe.files[0].sha256, tmp_path / "link")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "link").is_symlink()


def test_what_a_killed_process_left_is_neither_used_nor_followed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("x.probe", "copy"):
        (tmp_path / f".{name}.{os.getpid()}.part").symlink_to(tmp_path / "victim")
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, tmp_path / "first")])
    with open_probe(small) as probe:
        probe.extract_file(probe.files[0].sha256, tmp_path / "copy")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not list(tmp_path.glob(".*part"))


@pytest.mark.parametrize("name", ["core-7.img", "pages-1.img"])
def test_a_link_that_appears_while_unpacking_is_not_followed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "victim").write_text("precious")
    inner = os.open

    def open_late(path: Path, *arguments: int, **names: int) -> int:
        if Path(path).name == name:
            Path(path).symlink_to(tmp_path / "victim")
        return inner(path, *arguments, **names)

    monkeypatch.setattr("reducer.unpack.os.open", open_late)
    with open_probe(small) as probe, pytest.raises(StorageError, match="File exists"):
        probe.extract_phase(5, tmp_path / "out")
    assert (tmp_path / "victim").read_text() == "precious"


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writes end like those on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_too_little_room_leaves_no_half_probe_and_keeps_the_old_one(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [], big=os.urandom(1 << 20))
    (tmp_path / "p").mkdir()
    path = tmp_path / "p" / "x.probe"
    path.write_text("old")
    with (
        file_size_limit(100_000),
        pytest.raises(StorageError, match=r"x\.probe: .*; up to 1048580 bytes are needed"),
    ):
        write_probe(path, {}, [PhaseCheckpoint(0, folder)])
    assert [item.name for item in path.parent.iterdir()] == ["x.probe"]
    assert path.read_text() == "old"


def test_too_little_room_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", list(range(1, 100)))
    (tmp_path / "tool").write_bytes(os.urandom(300_000))
    write_probe(
        tmp_path / "x.probe",
        {},
        [PhaseCheckpoint(0, folder)],
        [ContainedFile("/tool", tmp_path / "tool", 0o755, "program")],
    )
    with open_probe(tmp_path / "x.probe") as probe:
        with file_size_limit(100_000):
            with pytest.raises(StorageError, match="bytes are needed"):
                probe.extract_phase(0, tmp_path / "out" / "phase")
            with pytest.raises(StorageError, match="300000 bytes are needed"):
                probe.extract_file(probe.files[0].sha256, tmp_path / "copy")
        assert not (tmp_path / "out" / "phase").exists()
        assert not list(tmp_path.glob("*copy*"))
        # And with room again the same probe works.
        probe.extract_phase(0, tmp_path / "out" / "phase")
        assert contents(tmp_path / "out" / "phase") == contents(folder)


FULL_DISK = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from checkpoint.errors import StorageError
from reducer.archive import PhaseCheckpoint, open_probe, write_probe
small, source, path = map(Path, sys.argv[2:5])
def full(action, *arguments):
    try:
        action(*arguments)
    except StorageError as error:
        assert "No space left on device" in str(error) and "bytes are needed" in str(error), error
        assert list(small.iterdir()) == [], list(small.iterdir())
        print("full")
full(write_probe, small / "x.probe", {}, [PhaseCheckpoint(0, source)])
with open_probe(path) as probe:
    full(probe.extract_phase, 0, small / "phase")
with open_probe(path, scratch=small) as probe:
    full(probe.extract_phase, 0, small.parent / "phase")
assert not (small.parent / "phase").exists()
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [], big=os.urandom(1 << 20))
    with (folder / "pages-1.img").open("wb") as out:
        out.write(os.urandom(256 * PAGE_SIZE))
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, folder)])
    (tmp_path / "full").mkdir()
    # A file system of its own in a mount namespace of its own: both end with the shell.
    script = 'mount -t tmpfs -o size=300k none "$3" && exec "$0" -c "$1" "$2" "$3" "$4" "$5"'
    arguments = [sys.executable, FULL_DISK, REPOSITORY, tmp_path / "full", folder, tmp_path / "x.probe"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "full\n" * 3), done.stderr


INTERRUPTED = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import reducer.archive as archive
inner = archive.write_member
def slow(*arguments):
    result = inner(*arguments)
    print("writing", flush=True)
    time.sleep(60)
    return result
archive.write_member = slow
archive.write_probe(Path(sys.argv[2]), {}, [archive.PhaseCheckpoint(0, Path(sys.argv[3]))])
"""


def test_ctrl_c_leaves_no_half_probe(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", [1, 2, 3])
    (tmp_path / "p").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(REPOSITORY), str(tmp_path / "p" / "x.probe"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    assert len(list((tmp_path / "p").iterdir())) == 1
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert list((tmp_path / "p").iterdir()) == []


def test_input_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "c", [1])
    (tmp_path / "tool").write_bytes(b"before")
    fingerprint = archive._fingerprint

    def then_change(path: Path) -> tuple[str, int]:
        result = fingerprint(path)
        path.write_bytes(b"after!")
        return result

    monkeypatch.setattr(archive, "_fingerprint", then_change)
    with pytest.raises(StorageError, match="tool changed while it was packed"):
        write_probe(
            tmp_path / "x.probe",
            {},
            [PhaseCheckpoint(0, folder)],
            [ContainedFile("/tool", tmp_path / "tool", 0o755, "program")],
        )
    assert not list(tmp_path.glob("*x.probe*"))


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
