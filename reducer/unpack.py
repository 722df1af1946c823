# SPDX-License-Identifier: Apache-2.0
"""Reading .probe files: checkpoints and files come out verified, or ProbeFileDamaged says why not.

Standard library only: nodes that run a probe have nothing else, but what reads faster is used where it is installed.
Memory stays at some ten MB and one byte a page; pages that are needed more than once wait in an unnamed file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from checkpoint.errors import StorageError
from checkpoint.linux import PAGE_SIZE
from reducer.compression import CHUNK, Sink, inflate_member, inflated
from reducer.member_source import MemberSource, WholeFile
from reducer.member_table import Member, Phase, StoredFile, Table, damaged, read_table
from reducer.output_file import create_file, forgiving, storage_errors, write_or_skip
from reducer.page_spool import CHUNK_PAGES, RUN, PageImages, PageSpool, PageStream, places, runs_of


def open_probe(path: Path, scratch: Path | None = None) -> ProbeArchive:
    """Open the probe at `path` and check its header, manifest, table and length; not yet its members.

    `scratch` is a folder for temporary data (default: the system's), up to the size of pages used more than once.
    ProbeFileDamaged for what is not a whole probe of a known version, StorageError if it cannot be read.
    """
    with storage_errors("open", path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise damaged(str(path), "it is not a regular file")
        file = path.open("rb")
    with ExitStack() as undo:
        undo.callback(file.close)
        with storage_errors("read", path):
            table = read_table(file.read, str(path))
            size = os.fstat(file.fileno()).st_size
        if size < table.file_size:
            raise damaged(str(path), f"it is cut off: {size} of {table.file_size} bytes are there")
        if size > table.file_size:
            raise damaged(str(path), f"{size - table.file_size} bytes follow its end")
        archive = ProbeArchive(path, WholeFile(path, file), table, scratch)
        undo.pop_all()
    return archive


class ProbeArchive:
    """An open probe; get one from `open_probe` and close it, or use it as a context manager.

    Every method that returns or writes contents has verified them first. Not for use by several threads.
    """

    def __init__(self, path: Path, source: MemberSource, table: Table, scratch: Path | None) -> None:
        """`path` is the probe's name in errors, whose members `source` has."""
        self._path = path
        self._source = source
        self._table = table
        self._scratch = scratch
        counts = (table.new_pages(position) for position in range(len(table.phases)))
        self._limits = [0, *accumulate(counts)]
        self._spooled: PageSpool | None = None
        self._kept: set[int] = set()
        self._all_pages = False

    def __enter__(self) -> ProbeArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the probe and of all temporary data."""
        self._source.close()
        if self._spooled is not None:
            self._spooled.close()

    @property
    def manifest(self) -> dict[str, Any]:
        """What the builder put in front."""
        return self._table.manifest

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases, in the order they arrive."""
        return self._table.phases

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """The files carried along; several may share one content."""
        return self._table.files

    @property
    def members(self) -> Mapping[str, Member]:
        """All stored pieces by name, in the order of the file."""
        return MappingProxyType(self._table.members)

    @property
    def data_names(self) -> tuple[str, ...]:
        """Names that `read_data` takes."""
        return tuple(name[len("data/") :] for name in self._table.members if name.startswith("data/"))

    @property
    def size_bytes(self) -> int:
        """Size of the probe file."""
        return self._table.file_size

    @property
    def front_size(self) -> int:
        """Bytes before the first member: header, manifest and table."""
        return self._table.file_size - sum(member.stored_size for member in self._table.members.values())

    @property
    def raw_bytes(self) -> int:
        """Size of all checkpoints as CRIU wrote them."""
        return sum(phase.raw_bytes for phase in self._table.phases)

    @property
    def distinct_pages(self) -> int:
        """Different pages of all phases, without the page of zeros: the largest page number."""
        return self._limits[-1]

    def verify(self) -> None:
        """Read the whole probe once and check all of it; ProbeFileDamaged names the first member at fault."""
        hashes = {file.member: file for file in self._table.files}
        for member in self._table.members.values():
            digest = hashlib.sha256()
            self._inflate(member, digest.update if member.name in hashes else _drop)
            if member.name in hashes and digest.hexdigest() != hashes[member.name].sha256:
                raise damaged(str(self._path), f"{hashes[member.name].path} has other contents than stated")
        for position, phase in enumerate(self._table.phases):
            with self._spool(phase.member("index")) as index:
                self._check_index(index, position)

    def read_data(self, name: str) -> bytes:
        """Contents of the additional member `name`, in memory; KeyError if there is none."""
        pieces: list[bytes] = []
        self._inflate(self._table.members[f"data/{name}"], pieces.append)
        return b"".join(pieces)

    def stored_bytes(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """The stored bytes of a member as they are, from `offset` on, some at a time.

        ProbeFileDamaged at the end if the checksum of the whole is wrong.
        """
        member = self._table.members[name]
        digest, at = hashlib.sha256(), 0
        read = self._source.open(member)
        while at < member.stored_size:
            piece = read(min(member.stored_size - at, CHUNK))
            if not piece:
                raise damaged(str(self._path), f"it is cut off in member {name}")
            digest.update(piece)
            at += len(piece)
            if at > offset:
                yield piece[-(at - offset) :]
        if digest.hexdigest() != member.sha256:
            raise damaged(str(self._path), f"the checksum of member {name} is wrong")

    def copy_stored(self, name: str, sink: Sink) -> None:
        """Pass the stored bytes of a member on as they are; ProbeFileDamaged at the end if their checksum is wrong."""
        for piece in self.stored_bytes(name):
            sink(piece)

    def copy_member(self, name: str, sink: Sink) -> None:
        """Pass the contents of a member on, to be used only after this returns."""
        self._inflate(self._table.members[name], sink)

    def page_runs(self, phase_id: int) -> Iterator[tuple[int, int]]:
        """The index of a phase, checked: (first page number or 0 for zero pages, count) of its runs, in order."""
        position = self._position(phase_id)
        with self._spool(self._table.phases[position].member("index")) as index:
            self._check_index(index, position)
            yield from runs_of(index)

    def phases_shared(self, phase_id: int) -> list[int]:
        """Ids of the earlier phases whose pages a phase refers to, from its index alone."""
        position = self._position(phase_id)
        with self._spool(self._table.phases[position].member("index")) as index:
            self._check_index(index, position)
            return [self._table.phases[earlier].id for earlier in self._earlier_phases(index, position)]

    def own_pages(self, phase_id: int) -> Iterator[memoryview]:
        """The pages that a phase brings along, some at a time; known to be right when the iterator has ended."""
        position = self._position(phase_id)
        stream, left = self._stream(position), self._table.new_pages(position)
        while left:
            pages = min(CHUNK_PAGES, left)
            yield stream.read(pages)
            left -= pages
        stream.finish()

    def read_pages(self, first: int, count: int) -> bytes:
        """`count` pages from number `first` on, whichever phase brought them. Spools all pages up to these."""
        if not self._all_pages:
            if self._spooled is not None:
                self._spooled.close()
            with storage_errors("unpack", self._scratch_name()):
                self._spooled = PageSpool(bytearray(b"\1") * self.distinct_pages, self._temporary())
            self._kept.clear()
            self._all_pages = True
        for position in range(len(self.phases)):
            if self._page_limit(position - 1) >= first + count - 1:
                break
            self._keep_pages(position)
        assert self._spooled is not None
        data = os.pread(self._spooled.file.fileno(), count * PAGE_SIZE, (first - 1) * PAGE_SIZE)
        if len(data) != count * PAGE_SIZE:
            raise StorageError(f"cannot read {self._scratch_name()}: temporary data vanished")
        return data

    def extract_phase(self, phase_id: int, folder: Path) -> None:
        """Rebuild the checkpoint of a phase in `folder`, which is made (mode 0700) or must be empty.

        Zero pages become holes. On any error nothing is left in `folder`. ProbeFileDamaged, for an unknown phase too;
        StorageError if it cannot be written.
        """
        position = self._position(phase_id)
        phase = self._table.phases[position]
        with self._spool(phase.member("index")) as index, self._spool(phase.member("images")) as images:
            written_pages = self._check_index(index, position)
            for earlier in self._earlier_phases(index, position):
                self._keep_pages(earlier)
            needed = sum(size for _, size in phase.parts) + written_pages * PAGE_SIZE
            with storage_errors("write", folder / "pages", needed), ExitStack() as undo, ExitStack() as opened:
                if not folder.exists():
                    folder.mkdir(mode=0o700, parents=True)
                    undo.callback(forgiving, folder.rmdir)
                elif any(folder.iterdir()):
                    raise StorageError(f"cannot unpack phase {phase_id} into {folder}: it is not empty")
                images.seek(0)
                for name, size in phase.parts:
                    with create_file(folder / name, undo) as out:
                        _copy(images, out, size)
                files = [
                    (opened.enter_context(create_file(folder / name, undo)), pages) for name, pages in phase.page_images
                ]
                self._write_pages(position, index, PageImages(files))
                undo.pop_all()

    def extract_file(self, sha256: str, path: Path, mode: int | None = None) -> None:
        """Write the carried file with this content to `path`, replacing what is there, whole or not at all.

        `mode` defaults to the permission bits the file had. ProbeFileDamaged, for an unknown checksum too.
        """
        file = next((item for item in self._table.files if item.sha256 == sha256), None)
        if file is None:
            raise damaged(str(self._path), "its manifest names a file that it does not hold")
        digest = hashlib.sha256()
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        with storage_errors("write", path, file.size), ExitStack() as undo:
            part.unlink(missing_ok=True)  # left by a process of the same number that was killed
            with create_file(part, undo) as out:

                def keep(data: bytes) -> None:
                    digest.update(data)
                    write_or_skip(out, data)

                self._inflate(self._table.members[file.member], keep)
                out.truncate()
                if digest.hexdigest() != sha256:
                    raise damaged(str(self._path), f"{file.path} has other contents than stated")
                os.fchmod(out.fileno(), file.mode & 0o777 if mode is None else mode)
            part.replace(path)
            undo.pop_all()

    def _position(self, phase_id: int) -> int:
        for position, phase in enumerate(self._table.phases):
            if phase.id == phase_id:
                return position
        raise damaged(str(self._path), f"its manifest names a phase {phase_id!r} that it does not hold")

    def _inflate(self, member: Member, sink: Sink) -> None:
        inflate_member(self._source.open(member), member, sink, str(self._path))

    def _temporary(self) -> IO[bytes]:
        # Unnamed, so that it is gone whatever ends this process.
        return tempfile.TemporaryFile(dir=self._scratch)

    @contextmanager
    def _spool(self, name: str) -> Iterator[IO[bytes]]:
        """The verified contents of a member as a temporary file."""
        member = self._table.members[name]
        with storage_errors("unpack", self._scratch_name(), member.raw_size):
            file = self._temporary()
        with file:
            with storage_errors("unpack", self._scratch_name(), member.raw_size):
                self._inflate(member, file.write)
                file.flush()
            yield file

    def _stream(self, position: int) -> PageStream:
        """The pages that the phase at `position` brings along."""
        member = self._table.members[self._table.phases[position].member("pages")]
        return PageStream(inflated(self._source.open(member), member, str(self._path)))

    def _page_spool(self) -> PageSpool:
        """Where pages wait that are needed again, made at its first use from the indexes of all phases."""
        if self._spooled is None:
            again = bytearray(self.distinct_pages)
            for position, phase in enumerate(self._table.phases):
                for place in places(self.page_runs(phase.id), self._page_limit(position - 1) + 1):
                    if not place.fresh:
                        again[place.first - 1 : place.first - 1 + place.pages] = b"\1" * place.pages
            with storage_errors("unpack", self._scratch_name()):
                self._spooled = PageSpool(again, self._temporary())
        return self._spooled

    def _keep_pages(self, position: int) -> None:
        """Have those pages of the phase at `position` in the temporary file that are needed again."""
        if position in self._kept:
            return
        spool, stream = self._page_spool(), self._stream(position)
        first, limit = self._page_limit(position - 1) + 1, self._page_limit(position)
        self._pass(stream, spool, first, limit + 1)
        stream.finish()
        self._kept.add(position)

    def _pass(self, stream: PageStream, spool: PageSpool, first: int, end: int) -> None:
        """Read the pages from number `first` to before `end`; keep what is needed again."""
        while first < end:
            data = stream.read(min(CHUNK_PAGES, end - first))
            self._keep(spool, first, data)
            first += len(data) // PAGE_SIZE

    def _keep(self, spool: PageSpool, first: int, data: memoryview) -> None:
        with storage_errors("unpack", self._scratch_name(), self.distinct_pages * PAGE_SIZE):
            spool.keep(first, data)

    def _scratch_name(self) -> Path:
        return (self._scratch or Path(tempfile.gettempdir())) / "pages"

    def _page_limit(self, position: int) -> int:
        """Largest page number that the phase at `position` may use."""
        return self._limits[position + 1]

    def _earlier_phases(self, index: IO[bytes], position: int) -> list[int]:
        """Positions of the earlier phases whose pages this one refers to."""
        found: set[int] = set()
        for place in places(runs_of(index), self._page_limit(position - 1) + 1):
            if not place.fresh:
                last = place.first + place.pages - 1
                first = bisect_left(self._limits, place.first) - 1
                found.update(range(first, min(position, bisect_left(self._limits, last))))
        return sorted(found)

    def _check_index(self, index: IO[bytes], position: int) -> int:
        """Check all runs of a page index; pages in it that are not zero pages."""
        phase, limit = self._table.phases[position], self._page_limit(position)
        pages = stored = 0
        for first, count in runs_of(index):
            if not count or (first and first + count - 1 > limit):
                raise damaged(str(self._path), f"phase {phase.id} refers to page {first} of {limit}")
            pages += count
            stored += count if first else 0
        if pages != phase.pages or index.seek(0, os.SEEK_END) % RUN.size:
            raise damaged(str(self._path), f"phase {phase.id} has an index of {pages} pages, not {phase.pages}")
        return stored

    def _write_pages(self, position: int, index: IO[bytes], images: PageImages) -> None:
        spool, stream = self._page_spool(), self._stream(position)
        own, end = self._page_limit(position - 1) + 1, self._page_limit(position) + 1
        at = own
        for place in places(runs_of(index), own):
            if not place.fresh:
                continue
            self._pass(stream, spool, at, place.first)
            at = place.first + place.pages
            for done in range(0, place.pages, CHUNK_PAGES):
                data = stream.read(min(CHUNK_PAGES, place.pages - done))
                images.write(place.position + done, data)
                self._keep(spool, place.first + done, data)
        self._pass(stream, spool, at, end)
        stream.finish()
        self._kept.add(position)
        for place in places(runs_of(index), own):
            if not place.fresh:
                images.copy(spool.file, place.first - 1, place.position, place.pages)
        images.finish()


def _drop(_: bytes) -> None:
    return None


def _copy(source: IO[bytes], out: IO[bytes], size: int) -> None:
    while size:
        piece = source.read(min(size, 4 * CHUNK))
        if not piece:
            raise OSError(errno.EIO, "temporary data vanished")
        out.write(piece)
        size -= len(piece)
