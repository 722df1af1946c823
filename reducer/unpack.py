# SPDX-License-Identifier: Apache-2.0
"""Reading .probe files: checkpoints and files come out verified, or ProbeFileDamaged says why not.

Standard library only: nodes that run a probe have nothing else. Whatever the size of
the probe, memory stays at a few MB; distinct pages wait in an unnamed file until a phase needs them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from checkpoint.errors import StorageError
from reducer.member_table import PAGE_SIZE, Member, Phase, StoredFile, Table, damaged, read_table

_CHUNK = 1 << 18
_RUN = struct.Struct("<II")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Sink = Callable[[bytes], Any]


@contextmanager
def storage_errors(what: str, path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError into a StorageError that names `path` and, if the disk is full, the bytes `needed`."""
    try:
        yield
    except OSError as error:
        text = f"cannot {what} {path}: {error.strerror or error}"
        if error.errno in _FULL and needed is not None:
            text += f"; up to {needed} bytes are needed in {path.parent}{_free(path.parent)}: make room"
        raise StorageError(text) from error


def inflate_member(read: Callable[[int], bytes], member: Member, sink: Sink, name: str) -> None:
    """Pass the contents of `member` to `sink` in pieces; `read` stands at its first stored byte.

    What went to `sink` may be used only after this returns: the checksum is known at the end. Never passes on
    more than the size the table states. ProbeFileDamaged if anything is not as the table says; `name` is the
    probe's, for errors.
    """
    digest = hashlib.sha256()
    inflater = zlib.decompressobj(wbits=31) if member.compression == "gzip" else None
    room = member.raw_size

    def emit(data: bytes) -> None:
        nonlocal room
        if len(data) > room:
            raise damaged(name, f"member {member.name} is larger than {member.raw_size} bytes")
        room -= len(data)
        sink(data)

    left = member.stored_size
    try:
        while left:
            piece = read(min(left, _CHUNK))
            if not piece:
                raise damaged(name, f"it is cut off in member {member.name}")
            left -= len(piece)
            digest.update(piece)
            if inflater is None:
                emit(piece)
                continue
            while piece:
                if inflater.eof:
                    raise damaged(name, f"member {member.name} goes on behind its end")
                emit(inflater.decompress(piece, _CHUNK))
                piece = inflater.unconsumed_tail
        # Output may still be pending when all input is in.
        while inflater is not None and not inflater.eof:
            data = inflater.decompress(b"", _CHUNK)
            if not data:
                break
            emit(data)
    except zlib.error as error:
        raise damaged(name, f"member {member.name} does not inflate ({error})") from error
    if digest.hexdigest() != member.sha256:
        raise damaged(name, f"the checksum of member {member.name} is wrong")
    if room or (inflater is not None and (not inflater.eof or inflater.unused_data)):
        raise damaged(name, f"member {member.name} does not inflate to {member.raw_size} bytes")


def open_probe(path: Path, scratch: Path | None = None) -> ProbeArchive:
    """Open the probe at `path` and check its header, manifest, table and length; not yet its members.

    `scratch` is a folder for temporary data of up to the size of all distinct pages (default: the system's).
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
        archive = ProbeArchive(path, file, table, scratch)
        undo.pop_all()
    return archive


class ProbeArchive:
    """An open probe; get one from `open_probe` and close it, or use it as a context manager.

    Every method that returns or writes contents has verified them first. Not for use by several threads.
    """

    def __init__(self, path: Path, file: BinaryIO, table: Table, scratch: Path | None) -> None:
        self._path = path
        self._file = file
        self._table = table
        self._scratch = scratch
        self._pages: IO[bytes] | None = None
        self._phases_spooled = 0

    def __enter__(self) -> ProbeArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the probe and of all temporary data."""
        self._file.close()
        if self._pages is not None:
            self._pages.close()

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
    def data_names(self) -> tuple[str, ...]:
        """Names that `read_data` takes."""
        return tuple(name[len("data/") :] for name in self._table.members if name.startswith("data/"))

    @property
    def size_bytes(self) -> int:
        """Size of the probe file."""
        return self._table.file_size

    @property
    def raw_bytes(self) -> int:
        """Size of all checkpoints as CRIU wrote them."""
        return sum(phase.raw_bytes for phase in self._table.phases)

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

    def extract_phase(self, phase_id: int, folder: Path) -> None:
        """Rebuild the checkpoint of a phase in `folder`, which is made (mode 0700) or must be empty.

        Zero pages become holes. On any error nothing is left in `folder`. KeyError for an unknown phase,
        ProbeFileDamaged before anything is written, StorageError if it cannot be written.
        """
        position = {phase.id: number for number, phase in enumerate(self._table.phases)}[phase_id]
        phase = self._table.phases[position]
        with self._spool(phase.member("index")) as index, self._spool(phase.member("images")) as images:
            written_pages = self._check_index(index, position)
            self._spool_pages(position)
            needed = sum(size for _, size in phase.parts) + written_pages * PAGE_SIZE
            with storage_errors("write", folder / "pages", needed), ExitStack() as undo:
                if not folder.exists():
                    folder.mkdir(mode=0o700, parents=True)
                    undo.callback(_forgiving, folder.rmdir)
                elif any(folder.iterdir()):
                    raise StorageError(f"cannot unpack phase {phase_id} into {folder}: it is not empty")
                images.seek(0)
                for name, size in phase.parts:
                    with create_file(folder / name, undo) as out:
                        _copy(images, out, size)
                self._write_pages(phase, index, folder, undo)
                undo.pop_all()

    def extract_file(self, sha256: str, path: Path, mode: int | None = None) -> None:
        """Write the carried file with this content to `path`, replacing what is there, whole or not at all.

        `mode` defaults to the permission bits the file had. KeyError for an unknown checksum.
        """
        file = {item.sha256: item for item in self._table.files}[sha256]
        digest = hashlib.sha256()
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        with storage_errors("write", path, file.size), ExitStack() as undo:
            # Left by a process of the same number that was killed.
            part.unlink(missing_ok=True)
            with create_file(part, undo) as out:

                def keep(data: bytes) -> None:
                    digest.update(data)
                    out.write(data)

                self._inflate(self._table.members[file.member], keep)
                if digest.hexdigest() != sha256:
                    raise damaged(str(self._path), f"{file.path} has other contents than stated")
                os.fchmod(out.fileno(), file.mode & 0o777 if mode is None else mode)
            part.replace(path)
            undo.pop_all()

    def _inflate(self, member: Member, sink: Sink) -> None:
        # OSErrors of the sink are the caller's: only reading is wrapped here.
        def read(size: int) -> bytes:
            with storage_errors("read", self._path):
                return self._file.read(size)

        with storage_errors("read", self._path):
            self._file.seek(member.offset)
        inflate_member(read, member, sink, str(self._path))

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

    def _spool_pages(self, position: int) -> None:
        """Have the new pages of all phases up to `position` in the temporary page file."""
        for number in range(self._phases_spooled, position + 1):
            member = self._table.members[self._table.phases[number].member("pages")]
            start = self._page_limit(number - 1) * PAGE_SIZE
            with storage_errors("unpack", self._scratch_name(), member.raw_size):
                if self._pages is None:
                    self._pages = self._temporary()
                # A failed attempt may have left something behind the last good page.
                self._pages.seek(start)
                self._pages.truncate()
                self._inflate(member, self._pages.write)
                self._pages.flush()
            self._phases_spooled = number + 1

    def _scratch_name(self) -> Path:
        return (self._scratch or Path(tempfile.gettempdir())) / "pages"

    def _page_limit(self, position: int) -> int:
        """Largest page number that the phase at `position` may use."""
        return sum(self._table.new_pages(number) for number in range(position + 1))

    def _check_index(self, index: IO[bytes], position: int) -> int:
        """Check all runs of a page index; pages in it that are not zero pages."""
        phase, limit = self._table.phases[position], self._page_limit(position)
        pages = stored = 0
        for first, count in _runs(index):
            if not count or (first and first + count - 1 > limit):
                raise damaged(str(self._path), f"phase {phase.id} refers to page {first} of {limit}")
            pages += count
            stored += count if first else 0
        if pages != phase.pages or index.seek(0, os.SEEK_END) % _RUN.size:
            raise damaged(str(self._path), f"phase {phase.id} has an index of {pages} pages, not {phase.pages}")
        return stored

    def _write_pages(self, phase: Phase, index: IO[bytes], folder: Path, undo: ExitStack) -> None:
        runs = _runs(index)
        first, count = 0, 0
        for name, pages in phase.page_images:
            with create_file(folder / name, undo) as out:
                done = 0
                while done < pages:
                    if not count:
                        first, count = next(runs)
                    now = min(count, pages - done)
                    if first and self._pages is not None:
                        out.seek(done * PAGE_SIZE)
                        self._pages.seek((first - 1) * PAGE_SIZE)
                        _copy(self._pages, out, now * PAGE_SIZE)
                        first += now
                    count -= now
                    done += now
                out.truncate(pages * PAGE_SIZE)


def _drop(_: bytes) -> None:
    return None


def _forgiving(action: Callable[[], Any]) -> None:
    with suppress(OSError):
        action()


def create_file(path: Path, undo: ExitStack) -> IO[bytes]:
    """A new file of mode 0600, which `undo` removes; never one that is there or that a link points to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    undo.callback(_forgiving, path.unlink)
    return os.fdopen(descriptor, "wb")


def _copy(source: IO[bytes], out: IO[bytes], size: int) -> None:
    while size:
        piece = source.read(min(size, 4 * _CHUNK))
        if not piece:
            raise OSError(errno.EIO, "temporary data vanished")
        out.write(piece)
        size -= len(piece)


def _runs(index: IO[bytes]) -> Iterator[tuple[int, int]]:
    """(first page number or 0 for zero pages, count) of every run of a page index."""
    index.seek(0)
    while True:
        piece = index.read(_CHUNK)
        if len(piece) < _RUN.size:
            return
        yield from _RUN.iter_unpack(piece[: len(piece) - len(piece) % _RUN.size])


def _free(folder: Path) -> str:
    try:
        return f", {shutil.disk_usage(folder).free} are free"
    except OSError:
        return ""
