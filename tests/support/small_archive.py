# SPDX-License-Identifier: Apache-2.0
"""A small probe file made by hand, and what tests do with it."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoint.linux import PAGE_SIZE
from reducer.archive import ContainedFile, PhaseCheckpoint, open_probe, write_probe
from reducer.member_table import FORMAT_VERSION, HEADER, HEADER_SIZE, MAGIC, read_table


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


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writes end like those on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
