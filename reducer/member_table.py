# SPDX-License-Identifier: Apache-2.0
"""The front of a .probe file: header, manifest and the table of members, checked before anything is used.

Standard library only: nodes that run a probe have nothing else. The format is described byte by byte in
docs/probe-format.md.
"""

from __future__ import annotations

import hashlib
import os.path
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged
from checkpoint.linux import PAGE_SIZE

MAGIC = b"\x89PROBE\r\n"
FORMAT_VERSION, WITHOUT_CRIU = 1, 2
"""Format versions. In the second, phases may lack CRIU's images: readers of the first need them."""

HEADER = struct.Struct("<8sIIQ")
"""Magic, format version, manifest size, file size; a SHA-256 of these and the manifest follows."""

HEADER_SIZE = HEADER.size + 32

MAX_MANIFEST_BYTES = 64 << 20
MAX_MEMBERS = 1 << 16
MAX_NAME_LENGTH = 200
MAX_PATH_LENGTH = 4096
MAX_SIZE = (1 << 53) - 1
"""Largest size in bytes a table may state: the largest integer every JSON reader keeps exactly."""

_MOST_INFLATION = {"gzip": 1032, "zstd": 1 << 15, "none": 1}
"""Compressions known, and how many bytes one stored byte can become: a zstd block of 128 KB takes four at least."""

_FLAT_IMAGE, _CRIU_IMAGE = "direct.img", "inventory.img"
"""Images that the direct restorer and CRIU begin with."""

_MAX_PAGE_NUMBER = (1 << 32) - 1
_MEMBER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.img\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Member:
    """One stored piece of a probe: `stored_size` bytes from `offset` on, with that SHA-256 (hex).

    They inflate to exactly `raw_size` bytes. All sizes and offsets are in bytes.
    """

    name: str
    raw_size: int
    stored_size: int
    sha256: str
    compression: str
    offset: int


@dataclass(frozen=True)
class Phase:
    """One phase's checkpoint: the small images in order with their sizes in bytes, the pages images with
    their lengths in pages. `raw_bytes` is the size of all its images as CRIU wrote them.
    """

    id: int
    parts: tuple[tuple[str, int], ...]
    page_images: tuple[tuple[str, int], ...]
    raw_bytes: int

    @property
    def pages(self) -> int:
        """Pages of all pages images together."""
        return sum(pages for _, pages in self.page_images)

    def member(self, what: str) -> str:
        """Name of the member that holds the phase's `images`, `pages` (new ones) or `index`."""
        return f"phase/{self.id}/{what}"


@dataclass(frozen=True)
class StoredFile:
    """A file the probe carries: the absolute path it had, permission bits, size in bytes, SHA-256 (hex)."""

    path: str
    mode: int
    purpose: str
    size: int
    sha256: str

    @property
    def member(self) -> str:
        """Name of the member that holds the contents."""
        return f"file/{self.sha256}"


@dataclass(frozen=True)
class Table:
    """Everything the front of a probe says. `manifest` is the builder's; the rest is the format's own."""

    manifest: dict[str, Any]
    phases: tuple[Phase, ...]
    files: tuple[StoredFile, ...]
    members: dict[str, Member]
    file_size: int

    def new_pages(self, position: int) -> int:
        """Pages that the phase at `position` of `phases` brings along."""
        return self.members[self.phases[position].member("pages")].raw_size // PAGE_SIZE


def damaged(name: str, problem: str) -> ProbeFileDamaged:
    """The error for a probe that cannot be trusted."""
    return ProbeFileDamaged(f"{name} is damaged: {problem}; copy or build it again")


def read_table(read: Callable[[int], bytes], name: str) -> Table:
    """Read and check the front of a probe. `read(n)` returns up to n bytes, b"" at the end.

    `name` is the probe's, for errors. Works on a pipe: nothing behind the manifest is read. ProbeFileDamaged
    for a foreign, cut off, damaged or unknown file.
    """
    head = _read_exactly(read, HEADER.size)
    if head[: len(MAGIC)] != MAGIC:
        raise ProbeFileDamaged(f"{name} is not a probe file")
    if len(head) < HEADER.size:
        raise damaged(name, "it is cut off in its header")
    _, version, manifest_size, file_size = HEADER.unpack(head)
    if version not in (FORMAT_VERSION, WITHOUT_CRIU):
        raise ProbeFileDamaged(
            f"{name} has format version {version}, this program reads version {FORMAT_VERSION} or {WITHOUT_CRIU}: "
            "use the version of probe that built it, or build it again"
        )
    if manifest_size > MAX_MANIFEST_BYTES:
        raise damaged(name, f"its manifest claims {manifest_size} bytes")
    rest = _read_exactly(read, 32 + manifest_size)
    if len(rest) < 32 + manifest_size:
        raise damaged(name, "it is cut off in its manifest")
    if hashlib.sha256(head + rest[32:]).digest() != rest[:32]:
        raise damaged(name, "the checksum of its manifest is wrong")
    try:
        document = strict_json.loads(rest[32:].decode("ascii"))
        table = _table(_Checked(document), HEADER_SIZE + manifest_size)
    except _Refused as error:
        raise damaged(name, str(error)) from error
    except ValueError as error:
        raise damaged(name, f"its manifest is not valid ({error})") from error
    end = max((member.offset + member.stored_size for member in table.members.values()), default=0)
    if file_size != table.file_size or end > file_size:
        raise damaged(name, f"its members end at byte {table.file_size}, its header says {file_size}")
    return table


def version_of(phases: Iterable[Iterable[str]]) -> int:
    """The format version of a probe whose phases have images of these names."""
    without = ({_FLAT_IMAGE, _CRIU_IMAGE} & set(names) == {_FLAT_IMAGE} for names in phases)
    return WITHOUT_CRIU if any(without) else FORMAT_VERSION


class _Refused(Exception):
    """A manifest that is well-formed JSON and still not one of ours."""


class _Checked:
    """Typed look-ups in a JSON object that came from outside."""

    def __init__(self, value: Any, where: str = "manifest") -> None:
        if not isinstance(value, dict):
            raise _Refused(f"{where} is not an object")
        self._value: dict[str, Any] = value
        self._where = where

    def integer(self, key: str, most: int = MAX_SIZE) -> int:
        return _integer(self._value.get(key), most, f"{key} of {self._where}")

    def text(self, key: str, most: int = MAX_NAME_LENGTH) -> str:
        value = self._value.get(key)
        if not isinstance(value, str) or len(value) > most:
            raise _Refused(f"{key} of {self._where} is not a text of at most {most} characters")
        return value

    def sha256(self) -> str:
        value = self.text("sha256")
        if not _SHA256.match(value):
            raise _Refused(f"sha256 of {self._where} is not a checksum")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._value.get(key)
        if not isinstance(value, dict):
            raise _Refused(f"{key} of {self._where} is not an object")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._value.get(key)
        if not isinstance(value, list) or len(value) > MAX_MEMBERS:
            raise _Refused(f"{key} of {self._where} is not a list of at most {MAX_MEMBERS} items")
        return value

    def sized_names(self, key: str) -> tuple[tuple[str, int], ...]:
        found: list[tuple[str, int]] = []
        for item in self.items(key):
            if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
                raise _Refused(f"{key} of {self._where} holds something else than a name and a size")
            if not _IMAGE_NAME.match(item[0]) or len(item[0]) > MAX_NAME_LENGTH:
                raise _Refused(f"image name {item[0]!r} of {self._where} is not allowed")
            found.append((item[0], _integer(item[1], MAX_SIZE, f"size of {item[0]}")))
        return tuple(found)


def _integer(value: Any, most: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise _Refused(f"{what} is not a number from 0 to {most}")
    return value


def _table(document: _Checked, first_offset: int) -> Table:
    members: dict[str, Member] = {}
    offset = first_offset
    for number, item in enumerate(document.items("members")):
        member = _member(_Checked(item, f"member {number}"), offset)
        if member.name in members:
            raise _Refused(f"member {member.name} is there twice")
        members[member.name] = member
        offset += member.stored_size
    phases = tuple(_phase(_Checked(item, "a phase"), members) for item in document.items("phases"))
    if len({phase.id for phase in phases}) != len(phases):
        raise _Refused("a phase is there twice")
    places = [members[phase.member("pages")].offset for phase in phases]
    if places != sorted(places):
        raise _Refused("its phases are not in the order of their pages")
    if sum(members[phase.member("pages")].raw_size for phase in phases) // PAGE_SIZE > _MAX_PAGE_NUMBER:
        raise _Refused("it holds more pages than can be numbered")
    files = tuple(_file(_Checked(item, "a file"), members) for item in document.items("files"))
    if len({file.path for file in files}) != len(files):
        raise _Refused("a file is there twice")
    return Table(document.mapping("manifest"), phases, files, members, offset)


def _member(item: _Checked, offset: int) -> Member:
    name = item.text("name")
    if not _MEMBER_NAME.match(name):
        raise _Refused(f"member name {name!r} is not allowed")
    compression = item.text("compression")
    if compression not in _MOST_INFLATION:
        raise _Refused(f"member {name} has unknown compression {compression!r}")
    raw, stored = item.integer("raw_size"), item.integer("stored_size")
    if compression == "none" and raw != stored:
        raise _Refused(f"member {name} is not compressed and has two sizes")
    if raw > _MOST_INFLATION[compression] * stored:
        raise _Refused(f"member {name} claims to inflate {stored} bytes to {raw}, more than is possible")
    return Member(name, raw, stored, item.sha256(), compression, offset)


def _phase(item: _Checked, members: dict[str, Member]) -> Phase:
    phase = Phase(
        item.integer("id"),
        item.sized_names("parts"),
        item.sized_names("page_images"),
        item.integer("raw_bytes"),
    )
    names = [name for name, _ in phase.parts + phase.page_images]
    if len(set(names)) != len(names):
        raise _Refused(f"phase {phase.id} has an image twice")
    for what in ("images", "pages", "index"):
        if phase.member(what) not in members:
            raise _Refused(f"phase {phase.id} lacks its {what}")
    if sum(size for _, size in phase.parts) != members[phase.member("images")].raw_size:
        raise _Refused(f"the images of phase {phase.id} do not fill their member")
    if phase.pages * PAGE_SIZE > MAX_SIZE:
        raise _Refused(f"phase {phase.id} claims {phase.pages} pages")
    if members[phase.member("pages")].raw_size % PAGE_SIZE:
        raise _Refused(f"the pages of phase {phase.id} are not whole")
    if members[phase.member("index")].raw_size > 8 * phase.pages:
        raise _Refused(f"the page index of phase {phase.id} is longer than its pages")
    return phase


def _file(item: _Checked, members: dict[str, Member]) -> StoredFile:
    path = item.text("path", MAX_PATH_LENGTH)
    if not is_plain_absolute(path):
        raise _Refused(f"path {path!r} is not a plain absolute one")
    file = StoredFile(path, item.integer("mode", 0o7777), item.text("purpose"), item.integer("size"), item.sha256())
    if file.member not in members or members[file.member].raw_size != file.size:
        raise _Refused(f"the contents of {path} are missing or of another size")
    return file


def is_plain_absolute(path: str) -> bool:
    """An absolute path without `.`, `..`, empty parts or NUL: it names one place below any new root."""
    if not path.startswith("/") or path.startswith("//") or path == "/" or "\0" in path:
        return False
    return os.path.normpath(path) == path


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """`size` bytes, or fewer if the input ends before."""
    pieces: list[bytes] = []
    while size:
        piece = read(min(size, 1 << 20))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
