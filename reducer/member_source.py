# SPDX-License-Identifier: Apache-2.0
"""Sources of the stored bytes of a probe's members.

Standard library only, as reducer/unpack.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from reducer.member_table import Member
from reducer.output_file import storage_errors


def sha256_of(file: BinaryIO) -> str:
    """SHA-256, hexadecimal, of a file from where it stands to its end."""
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


class MemberSource(Protocol):
    """Where the stored bytes of members come from."""

    def open(self, member: Member) -> Callable[[int], bytes]:
        """A function that returns up to so many of its bytes, from the first on; b"" at the end."""

    def close(self) -> None:
        """Let go of what is open."""


class WholeFile:
    """All members in one file, back to back. One is read at a time."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file

    def open(self, member: Member) -> Callable[[int], bytes]:
        # OSErrors of whoever takes the contents are his: only reading is wrapped here.
        def read(size: int) -> bytes:
            with storage_errors("read", self._path):
                return self._file.read(size)

        with storage_errors("read", self._path):
            self._file.seek(member.offset)
        return read

    def close(self) -> None:
        self._file.close()
