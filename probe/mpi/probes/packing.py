# SPDX-License-Identifier: Apache-2.0
"""Pack a probe of an MPI program in one file, a tar whose first member lists the others; unpack it, all checked."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged
from probe.mpi.probes.building import MpiProbe, build_mpi, read_mpi_probe
from probe.mpi.probes.clusters import Cluster
from probe.mpi.recording import Recording
from probe.pipeline.options import BuildOptions
from probe.progress import Display
from reducer.output_file import check_target, create_file, storage_errors

MEMBERS = "members.json"
VERSION = 1

_NAME = re.compile(r"recording\.json|clusters\.json|calls\.\d{1,7}\.\d{3,5}|rank-\d{1,7}\.probe")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_LISTED = 256 << 20
_PIECE = 1 << 20
_MOST_EXTENDED = 64 << 10
_EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
"""Types of headers that say more of the member behind them. Python reads them whole, each within the one before."""
_BROKEN = (
    tarfile.TarError, ValueError, OverflowError, EOFError, struct.error, RecursionError, MemoryError,
)  # fmt: skip
"""What Python's reader of tars says of bytes that are none."""


class _Head(tarfile.TarInfo):
    """Header of a member. Raises ReadError, which unlike other errors is never taken for the end of the tar."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Head:
        assert isinstance(tar, _Tar) and tar.fileobj is not None
        place = tar.fileobj.tell()
        head = cls.frombuf(tar.fileobj.read(tarfile.BLOCKSIZE), tar.encoding or "utf-8", tar.errors or "strict")
        if head.size < 0 or head.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse member, or a negative size")
        is_extended = head.type in _EXTENDED
        if is_extended:
            if tar.is_extended or head.size > _MOST_EXTENDED:
                raise tarfile.ReadError("headers longer than any that are written here")
            if b"GNU.sparse" in tar.fileobj.read(head.size):
                raise tarfile.ReadError("a sparse member")
        tar.fileobj.seek(place)
        tar.is_extended = is_extended
        return super().fromtarfile(tar)


class _Tar(tarfile.TarFile):
    """A tar that others made. is_extended: the last header says more of the next."""

    tarinfo = _Head
    is_extended = False


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    sha256: str


def build_packed(
    recording: Recording,
    output: Path,
    *,
    options: BuildOptions | None = None,
    display: Callable[[str], Display | None] = lambda _: None,
) -> tuple[Cluster, ...]:
    """Build a probe of each cluster of ranks, and pack them into the file `output`. Raises what `build_mpi` raises."""
    check_target(output)
    with storage_errors("write", output), tempfile.TemporaryDirectory(
        prefix=f".{output.name}.", dir=output.parent
    ) as made:  # fmt: skip
        folder = Path(made) / "probe"
        found = build_mpi(recording, folder, options=options, display=display).clusters
        pack(folder, output)
    return found


def pack(folder: Path, target: Path) -> None:
    """Pack the files of a probe's folder into `target`, mode 0600, whole or not at all. Raises StorageError."""
    check_target(target)
    with storage_errors("write", target), ExitStack() as undo:
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        found = [_member(path) for path in sorted(folder.iterdir())]
        listed = {"format_version": VERSION, "members": [vars(one) for one in found]}
        text = strict_json.dumps(listed).encode()
        with create_file(partial, undo) as out, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(_head(MEMBERS, len(text)), io.BytesIO(text))
            for one in found:
                with (folder / one.name).open("rb") as file:
                    tar.addfile(_head(one.name, one.size), file)
        partial.rename(target)


def _head(name: str, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.mode = size, 0o600
    return made


def _member(path: Path) -> _Member:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return _Member(path.name, path.stat().st_size, digest.hexdigest())


@contextmanager
def opened(path: Path) -> Iterator[MpiProbe]:
    """The probe in a file of `pack`, unpacked into a folder that goes away, or in a folder.

    Raises ProbeFileDamaged: a file that is none, damaged or cut short. Raises StorageError.
    """
    if path.is_dir():
        yield read_mpi_probe(path)
        return
    with ExitStack() as undo:
        with storage_errors("unpack", path):
            made = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="probe-mpi-")))
        unpack(path, made)
        yield read_mpi_probe(made)


def unpack(path: Path, folder: Path) -> None:
    """Write the members of a file of `pack` into an empty folder. Raises ProbeFileDamaged and StorageError."""
    with storage_errors("open", path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ProbeFileDamaged(f"{path}: is no probe of an MPI program: it is not a regular file")
    with storage_errors("read", path), path.open("rb") as file:
        try:
            with _Tar(fileobj=file, mode="r") as tar:
                _unpack(path, tar, folder)
        except _BROKEN as error:
            raise ProbeFileDamaged(f"{path}: is no probe of an MPI program, or damaged ({str(error)[:80]})") from error


def _unpack(path: Path, tar: tarfile.TarFile, folder: Path) -> None:
    first = tar.next()
    if first is None or first.name != MEMBERS or not _is_plain(first) or first.size > _MOST_LISTED:
        raise ProbeFileDamaged(f"{path}: is no probe of an MPI program: it does not begin with {MEMBERS}")
    file = tar.extractfile(first)
    assert file is not None
    listed = _listed(path, file.read())
    needed = sum(one.size for one in listed)
    for one in listed:
        member = tar.next()
        if member is None:
            raise ProbeFileDamaged(f"{path}: is cut short: {one.name} is missing")
        if member.name != one.name or member.size != one.size or not _is_plain(member):
            raise ProbeFileDamaged(f"{path}: has {member.name[:40]!r} in place of {one.name}")
        _extract(path, tar, member, one, folder / one.name, needed)
    more = tar.next()
    if more is not None:
        raise ProbeFileDamaged(f"{path}: has {more.name[:40]!r}, which it does not list")


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it is a file, and neither link, folder nor device."""
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)


def _extract(
    path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, one: _Member, target: Path, needed: int
) -> None:
    digest, left = hashlib.sha256(), one.size
    file = tar.extractfile(member)
    assert file is not None
    with storage_errors("unpack", target, needed=needed), ExitStack() as undo:
        with create_file(target, undo) as out:
            while left and (piece := _read(path, file, min(left, _PIECE))):
                digest.update(piece)
                out.write(piece)
                left -= len(piece)
        undo.pop_all()
    if left or digest.hexdigest() != one.sha256:
        raise ProbeFileDamaged(f"{path}: {one.name} is damaged: it has not the SHA-256 that is listed")


def _read(path: Path, file: IO[bytes], size: int) -> bytes:
    with storage_errors("read", path):
        return file.read(size)


def _listed(path: Path, text: bytes) -> list[_Member]:
    try:
        said = strict_json.loads(text)
        if not isinstance(said, dict) or said["format_version"] != VERSION:
            raise ValueError(f"this probe reads version {VERSION}")
        found = [_checked(one) for one in said["members"]]
        names = [one.name for one in found]
        if len(set(names)) != len(names):
            raise ValueError("a name twice")
        room = path.stat().st_size
        if sum(one.size for one in found) > room:
            raise ValueError(f"more bytes than the file's {room}")
    except (KeyError, TypeError, ValueError) as error:
        raise ProbeFileDamaged(f"{path}: its {MEMBERS} lists no members ({str(error)[:80]})") from error
    return found


def _checked(said: dict[str, Any]) -> _Member:
    name, size, sha256 = said["name"], said["size"], said["sha256"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"the name {str(name)[:40]!r}")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"the size of {name}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"the SHA-256 of {name}")
    return _Member(name, size, sha256)
