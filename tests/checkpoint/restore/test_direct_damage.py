# SPDX-License-Identifier: Apache-2.0
"""Flat images that are damaged, made to harm or of another checkpoint: refused before anything of them runs."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from pathlib import Path

import pytest
from direct_runs import report_of
from direct_state import (
    CHECKSUM,
    FAILED,
    FORMAT,
    PAGES,
    PARK,
    TABLE,
    flat_bytes,
    flat_state,
    moved,
    pages_of,
    places,
    plain,
    state,
    timed,
)

from checkpoint.errors import ProbeFileDamaged
from checkpoint.flat.image import NAME, FlatImage, Header, Kind, Mapping, OpenDescriptor, Run, checksum, decode, encode
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectRefused

__all__ = ["flat_state", "places", "plain", "state"]

INSIDE = ctypes.sizeof(Header)
"""An offset in an image at which contents may be."""

DESCRIPTORS_MADE_TO_HARM = {
    "a pipe without its end": [(OpenDescriptor(50, Kind.PIPE, 0, 0, 51))],
    "a pipe whose end is another's": [
        OpenDescriptor(50, Kind.PIPE, 0, 0, 51), OpenDescriptor(51, Kind.PIPE, 1, 0, 51),
    ],
    "a pipe that is read twice": [OpenDescriptor(50, Kind.PIPE, 0, 0, 51), OpenDescriptor(51, Kind.PIPE, 0, 0, 50)],
    "a pipe for both ways": [OpenDescriptor(50, Kind.PIPE, 2, 0, 50)],
    "a pipe too large": [OpenDescriptor(50, Kind.PIPE, 0, (1 << 20) + 1, 50)],
    "a pipe's end of sockets": [OpenDescriptor(50, Kind.PIPE, 0, 0, 51), OpenDescriptor(51, Kind.SOCKET, 1, 0, 50)],
    "a raw socket alone": [OpenDescriptor(50, Kind.SOCKET, 2, 0, 50, 0, 3)],
    "a socket that listens twice": [OpenDescriptor(50, Kind.SOCKET, 2, 2, 50, 0, 1)],
    "a socket that listens for datagrams": [OpenDescriptor(50, Kind.SOCKET, 2, 1, 50, 0, 2)],
    "contents for a socket alone": [
        OpenDescriptor(50, Kind.SOCKET, 2, 0, 50, 0, 1), OpenDescriptor(50, Kind.CONTENTS, 0, INSIDE, 0, 0, 8),
    ],
    "a raw socket": [OpenDescriptor(50, Kind.SOCKET, 2, 0, 51, 0, 3), OpenDescriptor(51, Kind.SOCKET, 2, 0, 50, 0, 3)],
    "a timer that wakes": [OpenDescriptor(50, Kind.TIMER, 0, 9)],
    "ticks in a version without": [
        OpenDescriptor(50, Kind.TIMER, 0, 1), OpenDescriptor(50, Kind.CONTENTS, 0, INSIDE, 0, 0, 40),
    ],
    "an unknown kind": [OpenDescriptor(50, Kind.MEMORY + 1)],
    "a memfd of no memory": [OpenDescriptor(50, Kind.MEMORY, 2)],
    "a duplicate of nothing": [OpenDescriptor(50, Kind.SAME_AS, 0, 0, 49)],
    "contents outside": [
        OpenDescriptor(50, Kind.PIPE, 0, 0, 50), OpenDescriptor(50, Kind.CONTENTS, 0, 1 << 40, 0, 0, 8),
    ],
    "contents too long": [
        OpenDescriptor(50, Kind.PIPE, 0, 0, 50), OpenDescriptor(50, Kind.CONTENTS, 0, 4096, 0, 0, (1 << 64) - 8),
    ],
    "contents of the header": [
        OpenDescriptor(50, Kind.PIPE, 0, 0, 50), OpenDescriptor(50, Kind.CONTENTS, 0, 0, 0, 0, 8),
    ],
    "contents for what reads nothing": [
        OpenDescriptor(50, Kind.EVENT), OpenDescriptor(50, Kind.CONTENTS, 0, INSIDE, 0, 0, 8),
    ],
    "a watch without a set": [OpenDescriptor(50, Kind.EVENT), OpenDescriptor(50, Kind.WATCH, 1, 0, 0)],
    "a watch for nothing": [OpenDescriptor(50, Kind.EPOLL), OpenDescriptor(50, Kind.WATCH, 1, 0, 49)],
    "a watch of itself": [OpenDescriptor(50, Kind.EPOLL), OpenDescriptor(50, Kind.WATCH, 1, 0, 50)],
    "a descriptor behind the watches": [
        OpenDescriptor(50, Kind.EPOLL), OpenDescriptor(51, Kind.EVENT), OpenDescriptor(50, Kind.WATCH, 1, 0, 51),
        OpenDescriptor(52, Kind.EVENT),
    ],
}  # fmt: skip
"""By what is wrong with them: entries that follow those of the process."""

TICKS_MADE_TO_HARM = {
    "ticks that are cut off": (INSIDE, 32), "ticks between words": (INSIDE + 1, 40), "ticks outside": (1 << 40, 40),
    "ticks of the header": (0, 40),
}  # fmt: skip
"""Position and bytes of what a timer is set to, in an image that has another timer's as they should be."""

MAPPINGS, RUNS, PATCHES, DESCRIPTORS, STAMPS, TOUCH_ORDER, CALLS, STRINGS, RSEQ = range(9)


def test_an_image_cut_off_anywhere_is_refused(plain: RestoreJob, tmp_path: Path) -> None:
    data, pages = flat_bytes(plain), pages_of(plain)
    header = Header.from_buffer_copy(data)
    sizes = {*range(0, 64), *range(64, len(data), 509), len(data) - 1}
    assert header.size == len(data)
    for size in sorted(sizes):
        status, progress, step, _ = report_of(data[:size], pages, tmp_path / "run")
        assert os.WIFEXITED(status) and progress == FAILED and step in (3, FORMAT, CHECKSUM), size


def test_a_changed_byte_anywhere_is_refused(plain: RestoreJob, tmp_path: Path) -> None:
    data, pages = flat_bytes(plain), pages_of(plain)
    for at in [*range(0, 200, 7), *random.Random(2).sample(range(200, len(data)), 100)]:
        changed = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        status, progress, step, _ = report_of(changed, pages, tmp_path / "run")
        assert os.WIFEXITED(status) and progress == FAILED and step in (FORMAT, CHECKSUM, 3, PARK), at


def add_ticks(flat: FlatImage, at: int, size: int) -> None:
    """Two timers that run: one as it should, and what the other is set to `at` and as long as is said."""
    flat.descriptors += [OpenDescriptor(50, Kind.TIMER, 0, 1), OpenDescriptor(51, Kind.TIMER, 0, 1)]
    flat.contents.append((50, bytes(40)))
    flat.watches.append(OpenDescriptor(51, Kind.CONTENTS, 0, at, 0, 0, size))


@pytest.mark.parametrize(
    ("what", "step", "table"),
    [
        ("overlap", TABLE, MAPPINGS), ("kernel address", TABLE, MAPPINGS), ("beyond the end", TABLE, MAPPINGS),
        ("inside the park", TABLE, MAPPINGS), ("shared and writable", TABLE, MAPPINGS), ("page zero", TABLE, MAPPINGS),
        ("run outside", TABLE, RUNS), ("runs not rising", TABLE, RUNS), ("stamp outside", TABLE, STAMPS),
        ("touch outside", TABLE, TOUCH_ORDER), ("rseq outside", TABLE, RSEQ), ("park in the kernel", FORMAT, None),
        ("descriptor twice", TABLE, DESCRIPTORS), ("patch outside", TABLE, PATCHES), ("many calls", TABLE, CALLS),
        ("folder outside", TABLE, STRINGS), ("park too small", FORMAT, None),
        *((what, TABLE, DESCRIPTORS) for what in (*DESCRIPTORS_MADE_TO_HARM, *TICKS_MADE_TO_HARM)),
    ],
)  # fmt: skip
def test_an_image_made_to_harm_is_refused(
    what: str, step: int, table: int | None, plain: RestoreJob, tmp_path: Path
) -> None:
    flat = decode(plain.images / NAME)
    flat.touch_order = flat.touch_order or [flat.mappings[0].start]
    changes = {
        "overlap": lambda: setattr(flat.mappings[1], "start", flat.mappings[0].start + 4096),
        "kernel address": lambda: setattr(flat.mappings[-1], "end", 0xFFFF800000000000),
        "beyond the end": lambda: setattr(flat.mappings[-1], "end", 0x7FFFFFFFF000 + 4096),
        "inside the park": lambda: flat.mappings.insert(
            next(i for i, m in enumerate(flat.mappings) if m.start > flat.header.park),
            Mapping(flat.header.park, flat.header.park + 4096, 0, 0, 3, 2, 0, 1),
        ),
        "shared and writable": lambda: (setattr(flat.mappings[0], "flags", 1), setattr(flat.mappings[0], "prot", 3)),
        "page zero": lambda: flat.mappings.insert(0, Mapping(0, 4096, 0, 0, 3, 2, 0, 1)),
        "run outside": lambda: flat.runs.append(Run(0x7FFFFFF00000, 1)),
        "runs not rising": lambda: flat.runs.append(flat.runs[0]),
        "stamp outside": lambda: flat.stamps.append(4096),
        "touch outside": lambda: flat.touch_order.append(4096),
        "rseq outside": lambda: setattr(flat.header, "rseq", 4096),
        "park in the kernel": lambda: setattr(flat.header, "park", 0xFFFF800000000000),
        "descriptor twice": lambda: flat.descriptors.append(flat.descriptors[0]),
        "patch outside": lambda: flat.patches.append((4096, bytes(4096))),
        "many calls": lambda: setattr(flat, "calls", list(range(600))),
        "folder outside": lambda: setattr(flat.header, "cwd", 1 << 40),
        "park too small": lambda: None,
    }
    changes |= {
        name: lambda more=more: flat.descriptors.extend(more) for name, more in DESCRIPTORS_MADE_TO_HARM.items()
    }
    changes |= {
        name: lambda at=at, size=size: add_ticks(flat, at, size) for name, (at, size) in TICKS_MADE_TO_HARM.items()
    }
    changes[what]()
    data = bytearray(encode(flat))
    if what == "park too small":
        data[Header.park_size.offset : Header.park_size.offset + 8] = (0x41000).to_bytes(8, "little")
    status, progress, found, _ = report_of(bytes(data), pages_of(plain), tmp_path / "run", stamps=4)
    assert os.WIFEXITED(status) and (progress, found) == (FAILED, step)


def test_ticks_where_they_may_be_are_not_refused(plain: RestoreJob, tmp_path: Path) -> None:
    flat = decode(plain.images / NAME)
    add_ticks(flat, INSIDE, 40)
    _, progress, found, _ = report_of(encode(flat), pages_of(plain), tmp_path / "run", stamps=4)
    assert progress != FAILED or found != TABLE


@pytest.mark.parametrize(
    ("newer", "first"), [(OpenDescriptor(50, Kind.EVENT), 2), (OpenDescriptor(50, Kind.SOCKET, 2, 0, 50, 0, 1), 9)]
)
def test_an_image_of_an_older_version_has_no_new_kinds(
    newer: OpenDescriptor, first: int, plain: RestoreJob, tmp_path: Path
) -> None:
    flat = decode(plain.images / NAME)
    flat.descriptors.append(newer)
    flat.clocks = 0
    data = bytearray(encode(flat))
    at = Header.version.offset
    assert data[at] == first
    data[at] = first - 1
    data[8:16] = checksum(memoryview(data)[at:]).to_bytes(8, "little")
    status, progress, found, _ = report_of(bytes(data), pages_of(plain), tmp_path / "run", stamps=4)
    assert os.WIFEXITED(status) and (progress, found) == (FAILED, TABLE)


def test_pages_that_are_missing_are_noticed(plain: RestoreJob, tmp_path: Path) -> None:
    short = tmp_path / "pages"
    short.write_bytes(pages_of(plain).read_bytes()[:-4096])
    (tmp_path / "run").mkdir()
    for number, path in enumerate(decode(plain.images / NAME).files):
        (tmp_path / "run" / str(number)).symlink_to(path)
    status, progress, step, _ = report_of(flat_bytes(plain), short, tmp_path / "run", stamps=4)
    assert os.WIFEXITED(status) and (progress, step) == (FAILED, PAGES)


def test_a_damaged_image_ends_with_the_word_damaged(plain: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    data = bytearray(flat_bytes(job))
    data[-1] ^= 1
    (job.images / NAME).write_bytes(data)
    with pytest.raises(ProbeFileDamaged, match="checksum"):
        timed(job, tmp_path)


def test_an_image_of_another_checkpoint_is_refused(plain: RestoreJob, flat_state: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    shutil.copy(flat_state.images / NAME, job.images / NAME)
    with pytest.raises(ProbeFileDamaged, match="another checkpoint"):
        timed(job, tmp_path)


def test_a_probe_without_a_flat_image_is_for_criu(plain: RestoreJob, tmp_path: Path) -> None:
    job = moved(plain, tmp_path / "images")
    (job.images / NAME).unlink()
    with pytest.raises(DirectRefused, match="for CRIU alone"):
        timed(job, tmp_path)


def test_an_image_cannot_have_the_nodes_files_for_writing(flat_state: RestoreJob, tmp_path: Path) -> None:
    """A copy opened for writing is opened for reading; a path that is no harmless device is refused."""
    job = moved(flat_state, tmp_path / "images")
    target = tmp_path / "precious"
    target.write_text("precious")
    target.chmod(0o666)
    flat = decode(job.images / NAME)
    (opened,) = [d for d in flat.descriptors if d.kind == Kind.PATH and d.number == 0]
    opened.path, opened.flags = flat.string(str(target)), os.O_RDWR
    (job.images / NAME).write_bytes(encode(flat))
    with pytest.raises(DirectRefused, match=f"descriptor 0 \\({target}\\): Permission denied"):
        timed(job, tmp_path)
    opened.kind, opened.file = Kind.COPY, len(flat.files)
    flat.files.append(str(target))
    (job.images / NAME).write_bytes(encode(flat))
    timed(job, tmp_path)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("odd", ["fifo", "/dev/zero", "folder"])
@pytest.mark.parametrize("where", ["written", "mapped", "opened"])
def test_an_image_cannot_have_the_nodes_devices(where: str, odd: str, flat_state: RestoreJob, tmp_path: Path) -> None:
    """Copying /dev/zero fills the disk, a pipe that nobody writes to holds who opens it, and so on."""
    job = moved(flat_state, tmp_path / "images")
    path = Path(odd) if odd.startswith("/") else tmp_path / odd
    if odd == "fifo":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    flat = decode(job.images / NAME)
    if where == "opened":
        if odd != "fifo":
            return  # both may be opened
        (opened,) = [d for d in flat.descriptors if d.kind == Kind.PATH and d.number == 0]
        opened.path, opened.flags = flat.string(str(path)), os.O_RDONLY
    elif where == "written":
        flat.written = [*flat.written, str(path)]
    else:
        flat.files = [*flat.files, str(path)]
    (job.images / NAME).write_bytes(encode(flat))
    said = "Not a directory" if where == "opened" else f"{path} is not a regular file here"
    with pytest.raises(DirectRefused, match=said):
        timed(job, tmp_path)
