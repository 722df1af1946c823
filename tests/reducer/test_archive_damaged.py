# SPDX-License-Identifier: Apache-2.0
"""Probe files that are damaged, or made to harm: refused, each by what is wrong with it."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_archive import page, replace_member, rewrite, seal, small, unpack_each, use_everything

from checkpoint.errors import ProbeFileDamaged, StorageError
from reducer.archive import open_probe
from reducer.member_table import HEADER, HEADER_SIZE, MAGIC, read_table
from reducer.unpack import inflate_member

__all__ = ["small"]


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
    # What is packed says when it was: every worker of the tests would call it otherwise.
    ids=["too little", "cut off", "a word more", "much more", "no gzip"],
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
