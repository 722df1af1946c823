# SPDX-License-Identifier: Apache-2.0
"""Write the contents of deleted files, which CRIU keeps in a form of its own, beside the images of a checkpoint."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from checkpoint.criu.entries import EntryReader, damaged
from checkpoint.criu.fields import GhostChunkEntry, GhostFileEntry
from checkpoint.errors import StorageError
from checkpoint.flat.file_names import deleted_name
from checkpoint.private_file import create_private
from checkpoint.process.descriptors import LARGEST_DELETED
from checkpoint.state.process_state import ProcessState

_U32_MAX = 2**32 - 1


def write_deleted(images: ProcessState) -> None:
    """Put the contents of every deleted file beside CRIU's images; direct capture has put them there itself.

    ProbeFileDamaged for images that do not fit, StorageError.
    """
    if images.own is not None:
        return
    for number in sorted({n for n in images.removed_files.values() if n is not None}):
        target = images.folder / deleted_name(number)
        target.unlink(missing_ok=True)
        source = images.folder / f"ghost-file-{number:x}.img"
        try:
            with create_private(target) as out:
                for offset, data in _pieces(source):
                    out.seek(offset)
                    out.write(data)
                out.truncate()
        except OSError as error:
            raise StorageError(f"cannot write {target}: {error.strerror}") from error


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a deleted file; the last piece ends where the file does."""
    reader = EntryReader(path, "ghost-file")
    head = reader.entry()
    if not stat.S_ISREG(head.integer(GhostFileEntry.mode) & _U32_MAX):
        raise damaged(path, "it holds no file")
    if not head.integer(GhostFileEntry.chunks, 0):
        yield 0, reader.rest()
        return
    size = head.integer(GhostFileEntry.size)
    if size > LARGEST_DELETED:
        raise damaged(path, f"a deleted file of {size} bytes")
    while not reader.at_end:
        chunk = reader.entry()
        length, offset = chunk.integer(GhostChunkEntry.len), chunk.integer(GhostChunkEntry.off)
        if length > size or offset > size - length:
            raise damaged(path, "a piece leaves the file")
        yield offset, reader.raw(length)
    yield size, b""
