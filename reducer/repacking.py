# SPDX-License-Identifier: Apache-2.0
"""Some phases of a probe as a probe of its own, and how large that would be, without unpacking any checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from checkpoint.linux import PAGE_SIZE
from reducer.archive import Entry, encode_document, front_size, write_member, write_members
from reducer.choices import Compression
from reducer.compression import check_packing, packed_size
from reducer.member_table import Phase, StoredFile, version_of
from reducer.page_spool import CHUNK_PAGES
from reducer.page_store import Runs
from reducer.unpack import ProbeArchive

Sink = Callable[[bytes], Any]


@dataclass(frozen=True)
class Kept:
    """What is kept of a probe: its new manifest, phases (in the probe's order), files and `data` members by name."""

    manifest: Mapping[str, Any]
    phases: Sequence[Phase]
    files: Sequence[StoredFile]
    data: Sequence[str]

    def copied(self) -> list[str]:
        """Members that stay as they are, ahead of the phases."""
        contents = {file.member: None for file in self.files}
        return [*(f"data/{name}" for name in self.data), *contents]

    def names(self) -> list[str]:
        """All members, in the order in which they are written."""
        return [*self.copied(), *(phase.member(what) for phase in self.phases for what in ("images", "pages", "index"))]

    def document(self, entries: Sequence[Entry]) -> bytes:
        """The front of the new probe with this member table."""
        return encode_document(
            self.manifest, [asdict(phase) for phase in self.phases], [asdict(file) for file in self.files], entries
        )


def repack(
    source: ProbeArchive, kept: Kept, path: Path, *, compression: Compression, limit: int | None = None
) -> int | None:
    """Write the part `kept` of `source` to `path`, whole or not at all; returns its size in bytes.

    Beyond `limit` bytes nothing is written and None returned. `path` may be the source's own: it is replaced at the
    end. Memory: five bytes a page and some ten MB; the source's distinct pages are unpacked into its temporary file.
    Raises ProbeFileDamaged where the source is, StorageError, ToolMissing.
    """
    check_packing(compression)
    most = source.size_bytes + sum(member.raw_size for member in source.members.values())
    version = version_of([name for name, _ in phase.parts] for phase in kept.phases)
    members = _members(source, kept, compression)
    return write_members(path, kept.names(), kept.document, members, most, limit, version=version)


def _members(source: ProbeArchive, kept: Kept, compression: Compression) -> Iterator[Callable[[IO[bytes]], Entry]]:
    def copied(name: str) -> Callable[[IO[bytes]], Entry]:
        return lambda out: _copy(source, name, out, compression)

    def packed(name: str, contents: Callable[[Sink], None]) -> Callable[[IO[bytes]], Entry]:
        return lambda out: write_member(out, name, contents, compression)

    for name in kept.copied():
        yield copied(name)
    numbers = _Numbers(source)
    for phase in kept.phases:
        yield copied(phase.member("images"))
        index = Runs()
        yield packed(phase.member("pages"), lambda sink, phase=phase, index=index: numbers.add(phase, index, sink))  # type: ignore[misc]
        yield packed(phase.member("index"), lambda sink, index=index: sink(index.encoded()))  # type: ignore[misc]


def _copy(source: ProbeArchive, name: str, out: IO[bytes], compression: Compression) -> Entry:
    member = source.members[name]
    if member.compression != compression:
        return write_member(out, name, lambda sink: source.copy_member(name, sink), compression)
    source.copy_stored(name, out.write)
    return Entry(name, member.raw_size, member.stored_size, member.sha256, member.compression)


class _Numbers:
    """New numbers of the pages, in the order of their first use by the phases kept."""

    def __init__(self, source: ProbeArchive) -> None:
        self._source = source
        self._new = np.zeros(source.distinct_pages + 1, dtype=np.uint32)
        self._last = 0

    def add(self, phase: Phase, index: Runs, sink: Sink) -> None:
        """Number the pages of a phase into its new index; contents of those not yet numbered go to `sink`."""
        for first, count in self._source.page_runs(phase.id):
            if not first:
                index.add(0, count)
                continue
            for begin in range(first, first + count, CHUNK_PAGES):
                end = min(begin + CHUNK_PAGES, first + count)
                new = self._new[begin:end]
                for low, high, numbered in _stretches(new):
                    if numbered:
                        continue
                    new[low:high] = np.arange(self._last + 1, self._last + 1 + high - low, dtype=np.uint32)
                    self._last += high - low
                    sink(self._source.read_pages(begin + low, high - low))
                for number in new.tolist():
                    index.add(number)


def _stretches(numbers: Any) -> Iterator[tuple[int, int, bool]]:
    """(first, end, whether numbered) of each stretch of pages."""
    flags = numbers > 0
    edges = np.flatnonzero(flags[1:] != flags[:-1]) + 1
    bounds = [0, *edges.tolist(), len(flags)]
    for low, high in itertools.pairwise(bounds):
        yield low, high, bool(flags[low])


def predicted_sizes(source: ProbeArchive, order: Sequence[int], kept: Callable[[int], Kept]) -> list[int]:
    """Sizes in bytes of the probes that keep the first 1, 2, ... of the phases `order` (ids), as packed now.

    Which pages are kept is read from the page index. A page takes that part of its member's stored bytes that it takes
    of the pages of the member packed one by one. `kept(n)` is the selection for the first n. Memory: five bytes a page.
    """
    taken = _stored_bytes(source)
    seen = np.zeros(source.distinct_pages, dtype=np.bool_)
    sizes = []
    for number, phase in enumerate(order, 1):
        for first, count in source.page_runs(phase):
            if first:
                seen[first - 1 : first - 1 + count] = True
        selection = kept(number)
        size = front_size(selection.names(), selection.document)
        size += round(float(taken[seen].sum(dtype=np.float64)))
        pages = {one.member("pages") for one in selection.phases}
        size += sum(source.members[name].stored_size for name in selection.names() if name not in pages)
        sizes.append(size)
    return sizes


def _stored_bytes(source: ProbeArchive) -> npt.NDArray[np.float32]:
    """What each distinct page takes of the probe, in bytes."""
    taken = np.zeros(source.distinct_pages, dtype=np.float32)
    end = 0
    for phase in source.phases:
        begin = end
        for pages in source.own_pages(phase.id):
            for offset in range(0, len(pages), PAGE_SIZE):
                taken[end] = packed_size(pages[offset : offset + PAGE_SIZE])
                end += 1
        if end > begin:
            apart = taken[begin:end].sum(dtype=np.float64)
            taken[begin:end] *= source.members[phase.member("pages")].stored_size / apart
    return taken
