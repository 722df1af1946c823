# SPDX-License-Identifier: Apache-2.0
"""Writing .probe files: checkpoints, the files they need and a manifest in one file, read front to back.

The format is described in docs/probe-format.md. Reading is in `reducer.unpack`, standard library alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.flat.file_names import PACKED
from checkpoint.linux import PAGE_SIZE
from reducer.choices import Compression
from reducer.compression import check_packing, packer
from reducer.member_table import (
    FORMAT_VERSION,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_MANIFEST_BYTES,
    MAX_MEMBERS,
    MAX_SIZE,
    is_plain_absolute,
    version_of,
)
from reducer.output_file import create_file, storage_errors
from reducer.packed_image import PackedImage
from reducer.page_store import PageStore
from reducer.unpack import ProbeArchive, open_probe

__all__ = ["ArchiveSizes", "ContainedFile", "PhaseCheckpoint", "ProbeArchive", "open_probe", "write_probe"]

_CHUNK = 1 << 20
_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_PAGES_IMAGE = re.compile(r"pages-[A-Za-z0-9.-]+\.img\Z")


@dataclass(frozen=True)
class PhaseCheckpoint:
    """One phase's checkpoint: a folder of its images, of which the pages may be kept beside it. `id` is the phase's
    number, unique in a probe."""

    id: int
    folder: Path


@dataclass(frozen=True)
class ContainedFile:
    """A file to carry: contents from `local_path`, to appear at `original_path` (absolute) on the candidate.

    `mode` as st_mode (permission bits are kept), `purpose` a word such as "program", "library" or "input".
    """

    original_path: str
    local_path: Path
    mode: int
    purpose: str


@dataclass(frozen=True)
class ArchiveSizes:
    """Sizes in bytes: the probe file; the checkpoints as CRIU wrote them; the files carried, each once.

    And pages: held by all phases, of zeros among them, distinct and therefore stored.
    """

    size_bytes: int
    raw_bytes: int
    file_bytes: int
    pages: int
    zero_pages: int
    distinct_pages: int


def write_probe(
    path: Path,
    manifest: Mapping[str, Any],
    checkpoints: Sequence[PhaseCheckpoint],
    files: Sequence[ContainedFile] = (),
    data: Mapping[str, bytes] | None = None,
    compression: Compression = "gzip",
) -> ArchiveSizes:
    """Write a probe to `path`, mode 0600, replacing it whole or, on any error or Ctrl-C, not at all.

    `manifest` is free JSON (no NaN). Phases and files arrive in the order given, files first. `data` are
    further members by name, for what would make the manifest large; names of letters, digits, `.`, `_`, `-`.
    Equal pages of different phases are stored once, with the first of them; a phase's pages refer to its own
    and earlier ones only.

    Raises StorageError if something cannot be read or written, or changed meanwhile, ProbeFileDamaged for a
    folder that holds no checkpoint, ValueError for a manifest, name or path that no probe can hold, ToolMissing
    where there is nothing here to pack with `compression`.
    """
    check_packing(compression)
    plan = _Plan(manifest, checkpoints, files, data or {})
    with PageStore() as store:
        members = (
            lambda out, name=name, contents=contents: write_member(out, name, contents, compression)
            for name, contents in plan.members(store)
        )
        size = write_members(path, plan.names, plan.document, members, plan.most_bytes, version=plan.version)
        assert size is not None, "no limit was given"
        return ArchiveSizes(size, plan.raw_bytes, plan.file_bytes, store.pages, store.zero_pages, store.distinct_pages)


def front_size(names: Sequence[str], document: Callable[[Sequence[Entry]], bytes]) -> int:
    """Bytes before the first of these members."""
    return HEADER_SIZE + len(document([Entry(name) for name in names]))


def write_members(
    path: Path,
    names: Sequence[str],
    document: Callable[[Sequence[Entry]], bytes],
    members: Iterable[Callable[[IO[bytes]], Entry]],
    most_bytes: int,
    limit: int | None = None,
    *,
    version: int = FORMAT_VERSION,
) -> int | None:
    """Write a probe of `members`, whose names and order are `names`, whole or not at all; returns its size.

    `document` makes the manifest from the member table. Beyond `limit` bytes it returns None and leaves what was
    there before. StorageError names `path` and `most_bytes` where the disk is full.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors("write", path, most_bytes), ExitStack() as undo:
        # Left by a process of the same number that was killed.
        part.unlink(missing_ok=True)
        with create_file(part, undo) as out:
            # The table comes first and is known last: room for it is left, the rest filled with spaces.
            room = front_size(names, document) - HEADER_SIZE
            if room > MAX_MANIFEST_BYTES:
                raise ValueError(f"the manifest of {room} bytes is too large: move some of it to `data`")
            out.seek(HEADER_SIZE + room)
            entries = []
            for write in members:
                entries.append(write(out))
                if limit is not None and out.tell() > limit:
                    return None
            text = document(entries).ljust(room)
            size = out.tell()
            head = HEADER.pack(MAGIC, version, room, size)
            out.seek(0)
            out.write(head + hashlib.sha256(head + text).digest() + text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
        undo.pop_all()
        _sync_folder(path.parent)
    return size


def encode_document(
    manifest: Mapping[str, Any],
    phases: Sequence[Mapping[str, Any]],
    files: Sequence[Mapping[str, Any]],
    entries: Sequence[Entry],
) -> bytes:
    """The JSON text at the front of a probe (docs/probe-format.md)."""
    whole = {"manifest": manifest, "phases": phases, "files": files, "members": [vars(entry) for entry in entries]}
    return strict_json.dumps(whole, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True)
class Entry:
    """One row of the member table; the defaults are the widest values it can have."""

    name: str
    raw_size: int = MAX_SIZE
    stored_size: int = MAX_SIZE
    sha256: str = "0" * 64
    compression: str = "gzip"


@dataclass(frozen=True)
class _Images:
    """The images of one phase: small ones and pages images, each with its size in bytes."""

    id: int
    parts: dict[Path, int]
    pages: dict[Path, int]


class _Plan:
    """Everything known before the first byte is written."""

    def __init__(
        self,
        manifest: Mapping[str, Any],
        checkpoints: Sequence[PhaseCheckpoint],
        files: Sequence[ContainedFile],
        data: Mapping[str, bytes],
    ) -> None:
        self._manifest = dict(manifest)
        self._phases = [_images(item) for item in checkpoints]
        self._data = dict(data)
        for name in data:
            if not _DATA_NAME.match(name):
                raise ValueError(f"{name!r} cannot be the name of a member")
        if len({item.id for item in checkpoints}) != len(checkpoints):
            raise ValueError("the same phase is there twice")
        if len({file.original_path for file in files}) != len(files):
            raise ValueError("the same path is there twice")
        self._files: list[dict[str, Any]] = []
        self._sources: dict[str, Path] = {}
        for file in files:
            if not is_plain_absolute(file.original_path):
                raise ValueError(f"{file.original_path!r} is not a plain absolute path")
            digest, size = _fingerprint(file.local_path)
            self._sources.setdefault(digest, file.local_path)
            self._files.append(
                {
                    "path": file.original_path,
                    "mode": stat.S_IMODE(file.mode),
                    "purpose": file.purpose,
                    "size": size,
                    "sha256": digest,
                }
            )
        sizes = {item["sha256"]: item["size"] for item in self._files}
        self.file_bytes: int = sum(sizes.values())
        self.raw_bytes = sum(sum(item.parts.values()) + sum(item.pages.values()) for item in self._phases)
        self.most_bytes = self.file_bytes + self.raw_bytes + sum(map(len, data.values()))
        self.version = version_of([part.name for part in item.parts] for item in self._phases)
        self.names = [f"data/{name}" for name in data]
        self.names += [f"file/{digest}" for digest in self._sources]
        for item in self._phases:
            self.names += [f"phase/{item.id}/{what}" for what in ("images", "pages", "index")]
        if len(self.names) > MAX_MEMBERS:
            raise ValueError(f"{len(self.names)} members are more than a probe can hold ({MAX_MEMBERS})")

    def document(self, entries: Sequence[Entry]) -> bytes:
        """The manifest with this member table."""
        phases = [
            {
                "id": item.id,
                "parts": [[path.name, size] for path, size in item.parts.items()],
                "page_images": [[path.name, size // PAGE_SIZE] for path, size in item.pages.items()],
                "raw_bytes": sum(item.parts.values()) + sum(item.pages.values()),
            }
            for item in self._phases
        ]
        return encode_document(self._manifest, phases, self._files, entries)

    def members(self, store: PageStore) -> Iterator[tuple[str, Callable[[Callable[[bytes], Any]], None]]]:
        """(name, function that passes the contents to a sink) of every member, in the order of `names`."""
        for name, content in self._data.items():
            yield f"data/{name}", lambda sink, content=content: sink(content)  # type: ignore[misc]
        for digest, path in self._sources.items():
            yield f"file/{digest}", _checked_copy(path, digest)
        for item in self._phases:
            yield f"phase/{item.id}/images", _checked_sizes(item.parts)
            index: list[bytes] = []
            yield f"phase/{item.id}/pages", _new_pages(item.pages, store, index)
            yield f"phase/{item.id}/index", lambda sink, index=index: sink(b"".join(index))  # type: ignore[misc]


def _images(checkpoint: PhaseCheckpoint) -> _Images:
    parts: dict[Path, int] = {}
    pages: dict[Path, int] = {}
    folder = checkpoint.folder
    with storage_errors("read", folder):
        if (folder / "parent").is_symlink():
            raise ProbeFileDamaged(f"{folder} is an incremental checkpoint, which needs another: take it whole")
        for path in sorted(folder.glob("*.img")):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise ProbeFileDamaged(f"{path} is not a regular file; take the checkpoint again")
            (pages if _PAGES_IMAGE.match(path.name) else parts)[path] = status.st_size
    if (folder / PACKED).exists():
        with PackedImage(folder) as packed:
            pages[packed.path] = packed.size
        pages = dict(sorted(pages.items()))
    if not parts:
        raise ProbeFileDamaged(f"{folder} holds no checkpoint images; take the checkpoint again")
    for path, size in pages.items():
        if size % PAGE_SIZE:
            raise ProbeFileDamaged(f"{path} does not consist of whole pages; take the checkpoint again")
    return _Images(checkpoint.id, parts, pages)


def _read(path: Path) -> Iterator[bytes]:
    with storage_errors("read", path):
        file = path.open("rb")
    with file:
        while True:
            with storage_errors("read", path):
                piece = file.read(_CHUNK)
            if not piece:
                return
            yield piece


def _fingerprint(path: Path) -> tuple[str, int]:
    """(SHA-256, size in bytes) of a regular file."""
    with storage_errors("read", path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise StorageError(f"cannot pack {path}: it is not a regular file")
    digest = hashlib.sha256()
    size = 0
    for piece in _read(path):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def _checked_copy(path: Path, sha256: str) -> Callable[[Callable[[bytes], Any]], None]:
    def copy(sink: Callable[[bytes], Any]) -> None:
        digest = hashlib.sha256()
        for piece in _read(path):
            digest.update(piece)
            sink(piece)
        if digest.hexdigest() != sha256:
            raise StorageError(f"{path} changed while it was packed: leave it alone and build again")

    return copy


def _checked_sizes(parts: Mapping[Path, int]) -> Callable[[Callable[[bytes], Any]], None]:
    def copy(sink: Callable[[bytes], Any]) -> None:
        for path, size in parts.items():
            copied = 0
            for piece in _read(path):
                copied += len(piece)
                sink(piece)
            if copied != size:
                raise StorageError(f"{path} changed while it was packed: leave it alone and build again")

    return copy


def _new_pages(
    pages: Mapping[Path, int], store: PageStore, index: list[bytes]
) -> Callable[[Callable[[bytes], Any]], None]:
    def copy(sink: Callable[[bytes], Any]) -> None:
        for path, size in pages.items():
            before = store.pages
            index.append(store.add_image(path, sink))
            if (store.pages - before) * PAGE_SIZE != size:
                raise StorageError(f"{path} changed while it was packed: leave it alone and build again")

    return copy


def write_member(
    out: IO[bytes], name: str, contents: Callable[[Callable[[bytes], Any]], None], compression: Compression
) -> Entry:
    """Pack what `contents` passes to its sink as the next member of the file `out`."""
    packing = packer(compression)
    digest = hashlib.sha256()
    raw = stored = 0

    def write(packed: bytes) -> None:
        nonlocal stored
        digest.update(packed)
        stored += out.write(packed)

    def pack(data: bytes) -> None:
        nonlocal raw
        raw += len(data)
        write(packing.compress(data))

    contents(pack)
    write(packing.flush())
    return Entry(name, raw, stored, digest.hexdigest(), compression)


def _sync_folder(folder: Path) -> None:
    """Make the rename last; a file system that cannot sync folders keeps it anyway."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
