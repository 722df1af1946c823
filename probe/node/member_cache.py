# SPDX-License-Identifier: Apache-2.0
"""Members of probes that were sent to this node, by the SHA-256 of their stored bytes: the same one is sent once.

Several agents may share a folder, even from several nodes (home folders on a network): files appear whole, by rename,
and a file that is being received is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.node.protocol import CHUNK
from reducer.member_source import sha256_of
from reducer.member_table import Member
from reducer.output_file import storage_errors

DEFAULT_LIMIT = 4_000_000_000
"""Bytes that the cache may keep after a run."""

_RECENT_SECONDS = 7200.0
"""What was used this recently stays: another agent may be reading it."""


def own_folder(path: Path) -> Path:
    """Make a folder that nobody else can write to. StorageError where it cannot be made, or is somebody else's."""
    with storage_errors("make", path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise StorageError(f"{path} belongs to somebody else, or others can write to it; choose another --cache-dir")
    return path


class MemberCache:
    """The cache below `folder`, at most `limit` bytes after `trim` when nobody else uses it."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self._folder = own_folder(folder)
        self._limit = limit

    def path(self, member: Member) -> Path:
        return self._folder / member.sha256

    def has(self, member: Member) -> bool:
        """Whether it is here, whole and undamaged; a damaged one is removed."""
        path = self.path(member)
        try:
            with path.open("rb") as file:
                right = sha256_of(file) == member.sha256
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if not right:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def check_space(self, needed: int) -> None:
        """Raise StorageError where the disk lacks room for `needed` bytes more."""
        with storage_errors("look at", self._folder):
            free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise StorageError(
                f"the disk with {self._folder} is full: {needed} bytes of the probe are to come, {free} are free; "
                "make room there, or choose another --cache-dir"
            )

    def begun(self, member: Member) -> int:
        """Bytes of a member that a broken connection left; to be sent from there on."""
        try:
            return min(self._part(member).stat().st_size, member.stored_size)
        except OSError:
            return 0

    def receive(self, member: Member, offset: int, read: Callable[[Callable[[bytes], Any]], None]) -> bool:
        """Take what `read` passes on as the member's bytes from `offset` on. True if it is whole and right now.

        What was received stays when `read` fails; a whole one with a wrong checksum goes. Raises StorageError.
        """
        part = self._part(member)
        with storage_errors("write", part, member.stored_size), _locked(part) as (file, path):
            if file.seek(0, os.SEEK_END) < offset:
                # Another agent had begun it, and has taken it away since.
                read(_drop)
                return False
            file.truncate(offset)
            file.seek(offset)
            try:
                read(file.write)
            finally:
                file.flush()
            size = file.tell()
            file.seek(0)
            if size != member.stored_size or sha256_of(file) != member.sha256:
                path.unlink()
                return False
            path.replace(self.path(member))
            return True

    def _part(self, member: Member) -> Path:
        return self._folder / f"{member.sha256}.part"

    def trim(self, alone: bool = False) -> None:
        """Remove what has not been used for longest until the cache is as small as it should be.

        What was used lately stays, unless this agent is `alone` with it.
        """
        entries = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        size = sum(entry[1] for entry in entries)
        for used, bytes_, path in sorted(entries):
            if size <= self._limit or (not alone and used > time.time() - _RECENT_SECONDS):
                return
            with contextlib.suppress(OSError):
                path.unlink()
                size -= bytes_


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """(file, its path): `part`, or another one where somebody else is writing that."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file: BinaryIO = os.fdopen(os.open(part, flags, 0o600), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Until we had the lock it may have become a whole member, or gone.
        ours = os.path.samestat(os.fstat(file.fileno()), part.stat())
    except OSError:
        ours = False
    if ours:
        with file:
            yield file, part
        return
    file.close()
    other = part.with_name(f"{part.name}.{os.getpid()}.{time.monotonic_ns()}")
    with os.fdopen(os.open(other, flags | os.O_EXCL, 0o600), "r+b") as file:
        try:
            yield file, other
        finally:
            # Nobody would go on with it.
            with contextlib.suppress(OSError):
                other.unlink()


def _drop(_: bytes) -> None:
    return None


class ArrivingMembers:
    """Members as a source for ProbeArchive (reducer.member_source): reading one waits until it is here."""

    def __init__(self, cache: MemberCache) -> None:
        self._cache = cache
        self._here: set[str] = set()
        self._wanted: set[str] = set()
        self._changed = threading.Condition()
        self._file: BinaryIO | None = None

    def want(self, names: Iterable[str]) -> None:
        with self._changed:
            self._wanted.update(names)

    def arrived(self, name: str) -> bool:
        """Note that a member is here; True if it was the last one that is wanted."""
        with self._changed:
            self._here.add(name)
            self._changed.notify_all()
            return self._wanted <= self._here

    def all_here(self) -> bool:
        with self._changed:
            return self._wanted <= self._here

    def wait(self) -> None:
        """Return when all that is wanted is here."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted <= self._here)

    def open(self, member: Member) -> Callable[[int], bytes]:
        with self._changed:
            if member.name not in self._wanted and member.name not in self._here:
                raise ProbeFileDamaged(f"member {member.name} is needed and was not asked for; build the probe again")
            # Whoever receives ends this process when nothing comes any more.
            self._changed.wait_for(lambda: member.name in self._here)
        self.close()
        path = self._cache.path(member)
        with storage_errors("read", path):
            file = self._file = path.open("rb")

        def read(size: int) -> bytes:
            with storage_errors("read", path):
                return file.read(min(size, CHUNK))

        return read

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
