# SPDX-License-Identifier: Apache-2.0
"""Flat images whose tables of shared memory or of signals are made to harm: refused before anything of them runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from direct_runs import memfd_job, report_of
from direct_state import FAILED, TABLE, timed

from checkpoint.errors import NodeUnfit, PhaseFailed
from checkpoint.flat.file_names import SHARED_PAGES
from checkpoint.flat.image import (
    MOST_OBJECTS,
    MOST_PENDING,
    NAME,
    OF_OBJECT,
    USER_END,
    FlatImage,
    Header,
    Kind,
    MemoryObject,
    OpenDescriptor,
    Pending,
    Piece,
    Run,
    checksum,
    decode,
    encode,
)
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectRefused, direct_spec


@pytest.fixture(scope="module")
def memfd(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoreJob:
    return memfd_job(builds, tmp_path_factory.mktemp("memfd"))


def signal(number: int, to_thread: int = 0) -> Pending:
    one = Pending(to_thread)
    one.information[0] = number
    return one


def shared_mapping(flat: FlatImage) -> int:
    return next(n for n, m in enumerate(flat.mappings) if m.file & OF_OBJECT and m.flags & 1)


def change(table: str, row: int, **fields: int) -> Callable[[FlatImage], None]:
    def changed(flat: FlatImage) -> None:
        for field, value in fields.items():
            setattr(getattr(flat, table)[row], field, value)

    return changed


def add(name: str, *rows: object) -> Callable[[FlatImage], None]:
    return lambda flat: getattr(flat, name).extend(rows)


def of_another(flat: FlatImage) -> None:
    flat.mappings[shared_mapping(flat)].file = OF_OBJECT | len(flat.objects)
    flat.present = []


def of_a_copy(flat: FlatImage) -> None:
    flat.mappings[shared_mapping(flat)].file = 1
    flat.present = []


def nowhere(flat: FlatImage) -> None:
    private = next(m for m in flat.mappings if not m.file)
    flat.present.append(Run(private.start, 1))


def behind_the_end(flat: FlatImage) -> None:
    one = flat.mappings[shared_mapping(flat)]
    flat.present.append(Run(one.start, 1))
    flat.objects[one.file & ~OF_OBJECT].size = one.file_offset
    flat.pieces = []


def unreadable(flat: FlatImage) -> None:
    one = flat.mappings[shared_mapping(flat)]
    flat.present, one.prot = [Run(one.start, 1)], 0


def of_no_memory(flat: FlatImage) -> None:
    """What follows the table of objects would do for a large one."""
    flat.pieces[0].unused = 1
    flat.pieces.append(Piece(len(flat.objects), 0, 0, 1))


def present(offset: int, pages: int) -> Callable[[FlatImage], None]:
    def changed(flat: FlatImage) -> None:
        flat.present.append(Run(flat.mappings[shared_mapping(flat)].start + offset, pages))

    return changed


HARM: dict[str, Callable[[FlatImage], None]] = {
    "more memory than there may be": add("objects", *[MemoryObject(8)] * MOST_OBJECTS),
    "a size beyond all addresses": change("objects", 0, size=USER_END + 1),
    "a name outside": change("objects", 0, name=1 << 40),
    "a set-user-id bit": change("objects", 0, mode=0o4755),
    "an unknown seal": change("objects", 0, seals=64),
    "a piece of no memory": of_no_memory,
    "a piece within a page": change("pieces", 0, offset=8),
    "an empty piece": change("pieces", 0, pages=0),
    "a piece behind the end": change("pieces", 0, offset=1 << 40),
    "a piece too long": change("pieces", 0, pages=1 << 60),
    "a mapping of no memory": of_another,
    "a copy, shared and writable": of_a_copy,
    "a page of other memory in advance": nowhere,
    "a page behind the end in advance": behind_the_end,
    "a page that cannot be read in advance": unreadable,
    "no pages in advance": present(0, 0),
    "what is no page in advance": present(8, 1),
    "pages nowhere in advance": add("present", Run(PAGE_SIZE, 1)),
    "a descriptor of no memory": add("descriptors", OpenDescriptor(5000, Kind.MEMORY, 2, 0, MOST_OBJECTS)),
    "a descriptor with an unknown access": add("descriptors", OpenDescriptor(5000, Kind.MEMORY, 3)),
    "too many signals": add("pending", *[signal(10)] * (MOST_PENDING + 1)),
    "a signal for another thread": add("pending", signal(10, 2)),
    "no signal": add("pending", signal(0)),
    "a signal that there is not": add("pending", signal(65)),
    **{f"signal {number}": add("pending", signal(number)) for number in (5, 9, 19)},
}


@pytest.mark.parametrize("what", HARM)
def test_an_image_made_to_harm_is_refused(what: str, memfd: RestoreJob, tmp_path: Path) -> None:
    flat = decode(memfd.images / NAME)
    HARM[what](flat)
    pages = next(path for path in memfd.images.glob("pages-*.img") if path.name != SHARED_PAGES)
    status, progress, step, _ = report_of(encode(flat), pages, tmp_path / "run", stamps=4)
    assert os.WIFEXITED(status) and (progress, step) == (FAILED, TABLE)


def test_an_older_version_has_no_shared_memory(memfd: RestoreJob, tmp_path: Path) -> None:
    data = bytearray((memfd.images / NAME).read_bytes())
    at = Header.version.offset
    for version in (1, 2, 3):
        data[at] = version
        data[8:16] = checksum(memoryview(data)[at:]).to_bytes(8, "little")
        pages = next(path for path in memfd.images.glob("pages-*.img") if path.name != SHARED_PAGES)
        status, progress, step, _ = report_of(bytes(data), pages, tmp_path / f"run-{version}", stamps=4)
        assert os.WIFEXITED(status) and (progress, step) == (FAILED, TABLE)


def test_a_size_lifts_no_limit(memfd: RestoreJob, tmp_path: Path) -> None:
    """Sizes are what the image says: of all together no file may have as much, and none has more than the node."""
    flat = decode(memfd.images / NAME)
    spec = direct_spec(memfd, flat, memfd.images, tmp_path, scratch(tmp_path, "as-made"), None)
    flat.objects = [*flat.objects, *[MemoryObject(1 << 30)] * (MOST_OBJECTS - len(flat.objects))]
    more = direct_spec(memfd, flat, memfd.images, tmp_path, scratch(tmp_path, "many"), None)
    assert more["file_bytes"] - spec["file_bytes"] <= 1 << 30
    assert more["memory_bytes"] == spec["memory_bytes"]
    flat.objects[-1] = MemoryObject(1 << 46)
    with pytest.raises(DirectRefused, match=f"shared memory of {1 << 46} bytes is more than this node has"):
        direct_spec(memfd, flat, memfd.images, tmp_path, scratch(tmp_path, "large"), None)


def scratch(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


def test_pages_that_are_missing_are_named(memfd: RestoreJob, tmp_path: Path) -> None:
    path = memfd.images / SHARED_PAGES
    data = path.read_bytes()
    try:
        path.write_bytes(data[:-PAGE_SIZE])
        with pytest.raises((NodeUnfit, PhaseFailed), match="pages image"):
            timed(memfd, tmp_path)
        path.unlink()
        with pytest.raises((NodeUnfit, PhaseFailed), match=f"opening the copy of {SHARED_PAGES}"):
            timed(memfd, tmp_path)
    finally:
        path.write_bytes(data)
    assert timed(memfd, tmp_path).wall > 0
