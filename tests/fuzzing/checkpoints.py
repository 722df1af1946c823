# SPDX-License-Identifier: Apache-2.0
"""Readers of CRIU's images and of the flat image, the restorer's own checks under sanitizers among them."""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import io
import resource
import struct
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from checkpoint.capture.stored import NAME as STATE_NAME
from checkpoint.capture.stored import read_state, write_state
from checkpoint.criu.entries import MAGIC, encode_entries, read_entries
from checkpoint.criu.fields import REGISTERS
from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.protobuf import Message, ProtobufError
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import ProbeError
from checkpoint.flat import convert, image
from checkpoint.flat.deleted import write_deleted
from checkpoint.flat.descriptors import NotFlat
from checkpoint.flat.file_names import SHARED_PAGES
from checkpoint.state.own_descriptors import OwnDescriptors
from checkpoint.state.process_state import (
    STOPPED,
    Descriptor,
    File,
    PageRun,
    ProcessState,
    SignalState,
    Task,
    Vma,
    VmaStatus,
    file_mappings,
    open_files,
)
from checkpoint.state.shared_memory import QueuedSignal, SharedMemory
from fuzzing.mutation import damaged
from fuzzing.reader import Reader

_HERE = Path(__file__).parent
_RESTORER = _HERE.parents[1] / "checkpoint" / "restorer"
_SANITIZED = (
    "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all", "-Wno-unused-function", "-Wno-unused-variable",
)  # fmt: skip


def _tarred(images: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in sorted(images.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _untarred(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: stored.read() for entry in tar.getmembers() if (stored := tar.extractfile(entry))}


def _checkpoint(folder: Path) -> Sequence[bytes]:
    """Images that CRIU made of two small processes, kept here: a plain one; one with descriptors that lead to itself
    (`inside all`)."""
    names = ("checkpoint.tar.gz", "own_descriptors.tar.gz")
    return [gzip.decompress((_HERE / name).read_bytes()) for name in names]


def _other_image(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    try:
        images = _untarred(data)
    except Exception:
        return damaged(choose, data, others)
    name = choose.choice(sorted(n for n in images if not n.startswith("pages-")))
    kind = name.split("-")[0].removesuffix(".img")
    if kind in MAGIC and choose.random() < 0.8:
        images[name] = _other_entries(choose, images[name], kind)
    else:
        images[name] = damaged(choose, images[name])
    return _tarred(images)


def _other_entries(choose: Random, data: bytes, kind: str) -> bytes:
    """Entries of an image changed one by one: their lengths stay right."""
    head, at, entries = 4 if kind == "inventory" else 8, 0, []
    at = head
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        entries.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if entries:
        which = choose.randrange(len(entries))
        kind_of = choose.randrange(5)
        if kind_of == 0:
            entries.insert(which, entries[choose.randrange(len(entries))])
        elif kind_of == 1:
            del entries[which]
        else:
            entries[which] = damaged(choose, entries[which])
    return data[:head] + b"".join(struct.pack("<I", len(e)) + e for e in entries)


def _read_images(data: bytes, folder: Path) -> Any:
    try:
        images = _untarred(data)
    except Exception as error:
        raise ProtobufError("no archive of images") from error
    for name, content in images.items():
        # Names are ours here: the table of a probe has checked them before.
        (folder / Path(name).name).write_bytes(content)
    found = read_checkpoint(folder)
    file_mappings(found)
    open_files(found)
    if not unsupported(found):
        write_deleted(found)
        outputs = [file.path for file in open_files(found) if file.writable]
        image.encode(convert.flatten(found, [0x400000], outputs=outputs))
    return None


def _entries(folder: Path) -> Sequence[bytes]:
    images = _untarred(_checkpoint(folder)[0])
    return [content for name, content in images.items() if name.startswith("core-")]


def _message(data: bytes, folder: Path) -> Any:
    (folder / "core.img").write_bytes(data)
    entries = read_entries(folder / "core.img", "core")
    # What is read and written again is the same: nothing gets lost or made up.
    written = encode_entries("core", entries)
    assert [e.encode() for e in entries] == [Message.decode(e.encode()).encode() for e in entries]
    assert len(written) <= len(data)
    return None


def _states(folder: Path) -> Sequence[bytes]:
    regular, anonymous = VmaStatus.REGULAR | VmaStatus.FILE_PRIVATE, VmaStatus.REGULAR | VmaStatus.ANON_PRIVATE
    write_state(
        ProcessState(
            folder=folder,
            own=OwnDescriptors(),
            tasks=(Task(7, 1, (7,)),),
            pid=7,
            comm="made",
            state=STOPPED,
            registers={name: 0x400000 for name in REGISTERS},
            exe_file_id=1,
            cwd_file_id=2,
            root_file_id=2,
            umask=0o22,
            vmas=(
                Vma(0x400000, 0x404000, 5, 2, regular, 1, 0, 0),
                Vma(0x404000, 0x406000, 3, 0x22, anonymous, 0, 0, 1 << 14),
                Vma(0x406000, 0x408000, 3, 1, VmaStatus.MEMFD, 1, 4096, 0),
            ),
            shared=(SharedMemory(1, "/memfd:made", 9000, 0o777, 1, ((4096, 2),), (3,)),),
            present=((0x406000, 1),),
            queued=(QueuedSignal(False, (10).to_bytes(128, "little")),),
            page_runs=(PageRun(0x404000, 2, 6),),
            pages_id=1,
            files={
                1: File(1, 1, "/bin/made", 0, 0, 9, 0o100755),
                2: File(2, 1, "/", 0, 0, None, 0o40755),
                3: File(3, 18, "/memfd:made", 2, 5, 9000, 0o100777),
            },
            descriptors=(Descriptor(0, 1, 0, 1), Descriptor(1, 3, 0, 18)),
            signals=SignalState(actions=((0, 0, 0, 0),) * 62),
            timers=((0, 0, 1, 0),) * 3,
            limits=((1, 2),) * 16,
        )
    )
    return [(folder / STATE_NAME).read_bytes()]


def _read_state(data: bytes, folder: Path) -> Any:
    (folder / STATE_NAME).write_bytes(data)
    (folder / "pages-1.img").write_bytes(bytes(2 * 4096))
    (folder / SHARED_PAGES).write_bytes(bytes(2 * 4096))
    found = read_state(folder)
    file_mappings(found)
    open_files(found)
    if not unsupported(found):
        image.encode(convert.flatten(found, [0x400000]))
    return None


def _flats(folder: Path) -> Sequence[bytes]:
    made = image.FlatImage(image.Header())
    made.header.park, made.header.cwd = 0x10000000, made.string("/work")
    made.header.rseq = 0x400020
    path = made.string("/dev/null")
    made.mappings = [
        image.Mapping(0x400000, 0x404000, 0, 0, 3, 2, 0, 0),
        image.Mapping(0x404000, 0x406000, 0x1000, 1 << 14, 5, 2, 1, 0),
        image.Mapping(0x7FFF0000, 0x7FFF4000, 0, 0, 3, 2 | 0x100, 0, 1),
    ]  # fmt: skip
    made.runs = [image.Run(0x400000, 2), image.Run(0x7FFF2000, 2)]
    made.patches = [(0x400000, bytes(4096))]
    made.descriptors = [image.OpenDescriptor(0, 4, 0, 0, 0, 0, path), image.OpenDescriptor(1, 5, 1, 0, 0, 0, path)]
    kept = image.encode(made)
    kind = image.Kind
    made.descriptors += [
        image.OpenDescriptor(5, kind.PIPE, 0, 65536, 9), image.OpenDescriptor(6, kind.EPOLL),
        image.OpenDescriptor(7, kind.SOCKET, 2, 212992, 8, 0, 1), image.OpenDescriptor(8, kind.SOCKET, 2, 0, 7, 1, 1),
        image.OpenDescriptor(9, kind.PIPE, 1, 0, 5), image.OpenDescriptor(10, kind.EVENT, 0, 3),
        image.OpenDescriptor(11, kind.TIMER, 0, 1), image.OpenDescriptor(12, kind.SIGNALS, 0, 1 << 9),
    ]  # fmt: skip
    made.contents, made.watches = [(5, b"unread"), (8, b"mail")], [image.OpenDescriptor(6, kind.WATCH, 1, 77, 5)]
    made.stamps, made.touch_order, made.calls = [0x402000], [0x400000, 0x7FFF2000], [0, 1, 60]
    made.files, made.written, made.opened = ["/usr/bin/solver"], ["/tmp/out"], ["/etc/hosts"]
    found = [image.encode(made), kept, image.encode(_shared(made))]
    made.contents.append((11, bytes(image.Ticks(0, 1000, 0, 500, 2))))
    return [*found, image.encode(made)]


def _shared(made: image.FlatImage) -> image.FlatImage:
    """The same with shared memory and pending signals."""
    made.mappings[1:1] = [
        image.Mapping(0x404000, 0x405000, 0x1000, 0, 3, 1, image.OF_OBJECT, 0),
        image.Mapping(0x405000, 0x406000, 0, 0, 1, 2, image.OF_OBJECT | 1, 0),
    ]
    del made.mappings[3]
    made.objects = [image.MemoryObject(9000, 0, 0o777, 1), image.MemoryObject(4096, 0, 0o600, 14)]
    made.pieces = [image.Piece(0, 0, 4096, 2), image.Piece(1, 0, 0, 1)]
    made.present = [image.Run(0x404000, 1)]
    made.pending = [image.Pending(1), image.Pending(0)]
    for number, one in zip((10, 34), made.pending, strict=True):
        one.information[0] = number
    made.descriptors += [image.OpenDescriptor(13, image.Kind.MEMORY, 2, 77), image.OpenDescriptor(14, 14, 0, 0, 1)]
    return made


def _summed(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """With the checksum right again, mostly; header and tables are changed more often than contents."""
    size = len(data)
    tables = [t.offset for t in _tables(data)] if size >= 512 else []
    if choose.random() < 0.7 and size > 600:
        start = choose.choice([8, 8, 100, *tables]) % size
        end = min(size, start + choose.choice((64, 256, 600)))
        part = bytearray(data[start:end])
        for _ in range(1 << choose.randrange(3)):
            at = choose.randrange(0, max(1, len(part) - 8), 4)
            value = choose.choice((0, 1, 7, 4096, 0x400000, 0x7FFFFFFFF000, (1 << 64) - 1, 1 << 63, size, size - 8))
            value = (value + choose.choice((0, 0, -1, 1, 4096))) % (1 << 64)
            part[at : at + 8] = struct.pack("<Q", value)
        data = (data[:start] + bytes(part) + data[end:])[:size]
    else:
        data = damaged(choose, data, others)
    if len(data) >= 24 and choose.random() < 0.95:
        header = bytearray(data)
        if choose.random() < 0.5 and len(data) > 32:
            header[24:32] = struct.pack("<Q", len(data))
        at = image.Header.version.offset
        header[8:16] = struct.pack("<Q", image.checksum(memoryview(header)[at:]))
        data = bytes(header)
    return data


def _tables(data: bytes) -> Iterator[image.Table]:
    if len(data) >= ctypes.sizeof(image.Header):
        header = image.Header.from_buffer_copy(data)
        for name in ("mappings", "runs", "patches", "descriptors", "stamps", "touch_order", "calls", "strings"):
            yield getattr(header, name)
        if header.version >= 4 and len(data) >= ctypes.sizeof(header) + ctypes.sizeof(image.Tables):
            tables = image.Tables.from_buffer_copy(data, ctypes.sizeof(header))
            for name in ("objects", "pieces", "present", "pending"):
                yield getattr(tables, name)
            yield image.Table(ctypes.sizeof(header), 0)


def _decode(data: bytes, folder: Path) -> Any:
    (folder / "a").write_bytes(data)
    image.decode(folder / "a")
    return None


_checking: list[subprocess.Popen[bytes]] = []


class Refused(Exception):
    """The restorer ends with a step."""


@contextmanager
def _sanitized(folder: Path) -> Iterator[None]:
    """The restorer's checks, built with address and undefined-behaviour sanitizers."""
    program = folder / "checks"
    sources = [_HERE / "restorer_checks.c", _RESTORER / "check.c"]
    command = ["cc", *_SANITIZED, f"-I{_RESTORER}", "-o", str(program), *map(str, sources)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    # Sanitizers reserve terabytes of addresses, which limits on the process would refuse.
    with (folder / "said").open("wb") as said, subprocess.Popen(
        [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
    ) as process:  # fmt: skip
        _checking.append(process)
        try:
            yield
        finally:
            _checking.clear()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()
    assert process.returncode == 0, (folder / "said").read_text(errors="replace")


def _check(data: bytes, folder: Path) -> Any:
    process = _checking[0]
    assert process.stdin and process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(struct.pack("<I", len(data)) + data)
        process.stdin.flush()
    verdict = process.stdout.read(1)
    if not verdict:
        raise AssertionError("the restorer's checks ended: a sanitizer's report, or a crash")
    if verdict != b"\x01":
        raise Refused(verdict[0])
    return None


READERS = (
    Reader("criu-images", _checkpoint, _read_images, (ProbeError, ProtobufError, NotFlat), change=_other_image),
    Reader("criu-entries", _entries, _message, (ProbeError,), change=lambda c, d, o: _core(c, d)),
    Reader("captured-state", _states, _read_state, (ProbeError, NotFlat), change=damaged),
    Reader("flat-image", _flats, _decode, (ProbeError,), change=_summed),
    Reader("restorer", _flats, _check, (Refused,), change=_summed, prepared=_sanitized),
)


def _core(choose: Random, data: bytes) -> bytes:
    return _other_entries(choose, data, "core") if choose.random() < 0.8 else damaged(choose, data)
