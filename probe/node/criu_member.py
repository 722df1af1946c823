# SPDX-License-Identifier: Apache-2.0
"""CRIU out of a probe (`probe build --with-criu`): its program, libraries and loader, from the member `criu`.

A tar archive (probe/contents/carried_criu.py) of ordinary files whose paths are those of the private CRIU
(checkpoint/criu/private_copy.py), so that `find_criu` finds it on a node once it is unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import time
from pathlib import Path, PurePosixPath

from checkpoint.errors import ProbeFileDamaged
from probe.node.member_cache import own_folder
from reducer.output_file import storage_errors
from reducer.unpack import ProbeArchive

CRIU_NAME = "criu"
"""Name of the probe's member with CRIU."""

_MOST_BYTES = 256 << 20
_MOST_FILES = 1000
_UNUSED_SECONDS = 30 * 86400


def unpack_criu(archive: ProbeArchive, folder: Path) -> Path:
    """Unpack the probe's CRIU below `folder`, once for each content; the folder to be PROBE_HOME.

    Raises ProbeFileDamaged for an archive of anything but ordinary files with plain paths, StorageError.
    """
    packed = archive.read_data(CRIU_NAME)
    home = own_folder(folder / "criu") / hashlib.sha256(packed).hexdigest()[:32]
    _forget_old(home.parent)
    if home.exists():
        with contextlib.suppress(OSError):
            os.utime(home)
        return home
    part = home.with_name(f"{home.name}.{os.getpid()}.part")
    try:
        with storage_errors("write", part, len(packed)):
            part.mkdir(mode=0o700)
            _extract(packed, part / "data" / "criu")
            try:
                part.rename(home)
            except OSError:
                # Another agent was quicker.
                if not home.exists():
                    raise
        return home
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _forget_old(folder: Path) -> None:
    """Remove those that have not been used for long, and what agents left that were killed meanwhile."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _extract(packed: bytes, target: Path) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            entries = tar.getmembers()
            if len(entries) > _MOST_FILES or sum(e.size for e in entries) > _MOST_BYTES:
                raise ProbeFileDamaged("the probe's CRIU is too large; build the probe again")
            for entry in entries:
                name = PurePosixPath(entry.name)
                if not entry.isreg() or name.is_absolute() or ".." in name.parts or not name.parts:
                    raise ProbeFileDamaged(f"the probe's CRIU holds {entry.name!r}, no ordinary file; build it again")
                path = target / name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                contents = tar.extractfile(entry)
                assert contents is not None
                if path.exists():
                    raise ProbeFileDamaged(f"the probe's CRIU holds {entry.name!r} twice; build it again")
                with path.open("xb") as out:
                    shutil.copyfileobj(contents, out)
                path.chmod(0o700 if entry.mode & 0o100 else 0o600)
    except (tarfile.TarError, ValueError) as error:
        raise ProbeFileDamaged(f"the probe's CRIU cannot be unpacked ({error}); build the probe again") from error
