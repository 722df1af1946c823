# SPDX-License-Identifier: Apache-2.0
"""Members come back whichever library packs or reads them; bombs, cuts and flipped bits are refused."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from small_archive import contents, make_checkpoint, page, replace_member, rewrite

from checkpoint.errors import ProbeFileDamaged, ToolMissing
from checkpoint.linux import PAGE_SIZE
from reducer import compression
from reducer.archive import ContainedFile, PhaseCheckpoint, open_probe, write_probe
from reducer.compression import CHUNK, inflated, packer, unpacker
from reducer.member_table import Member

TWIN = next(name for name in compression._TWINS if importlib.util.find_spec(name.split(".")[0]) is not None)

READERS = {"isal": "gzip", "zlib": "gzip", "twin": "zstd", "zstandard": "zstd"}
"""Every way a member can be read, and the compression it is for."""


def use(patch: pytest.MonkeyPatch, reader: str) -> None:
    """Have `reader` alone, of those for its compression."""
    if reader in ("isal", "zlib"):
        module = importlib.import_module("isal.isal_zlib") if reader == "isal" else zlib
        patch.setattr(compression, "_zlib", module)
    else:
        patch.setattr(compression, "_TWINS", (TWIN,) if reader == "twin" else ())
        patch.setattr(compression, "_PACKAGE", "zstandard" if reader == "zstandard" else "no_such_module")


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, request.param)
    return str(request.param)


def packed(data: bytes, how: str) -> bytes:
    packing = packer(how)
    return packing.compress(data) + packing.flush()


def member(stored: bytes, raw_size: int, how: str) -> Member:
    return Member("data/x", raw_size, len(stored), hashlib.sha256(stored).hexdigest(), how, 0)


def unpacked(stored: bytes, raw_size: int, how: str) -> bytes:
    return b"".join(inflated(io.BytesIO(stored).read, member(stored, raw_size, how), "x.probe"))


def test_there_are_two_zstd_readers_to_test() -> None:
    assert importlib.import_module(TWIN).ZstdDecompressor is not None
    assert zstandard.ZstdDecompressor is not None


@given(data=st.binary(max_size=300), times=st.integers(0, 5000))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("reader_name", READERS)
def test_round_trip(reader_name: str, data: bytes, times: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use(patch, reader_name)
        how = READERS[reader_name]
        assert unpacked(packed(data * times, how), len(data) * times, how) == data * times


def test_each_packer_is_read_by_each_reader(reader: str) -> None:
    how = READERS[reader]
    data = random.Random(1).randbytes(3 * CHUNK) + bytes(5 * CHUNK)
    streams = [gzip.compress(data)] if how == "gzip" else [zstandard.compress(data, 1), zstandard.compress(data, 19)]
    if how == "zstd":
        streams.append(importlib.import_module(TWIN).compress(data))
    for stored in [*streams, packed(data, how)]:
        assert unpacked(stored, len(data), how) == data


def test_a_bomb_stops_at_the_size_it_stated_and_in_little_memory(reader: str) -> None:
    how = READERS[reader]
    bomb = gzip.compress(bytes(300_000_000), 1) if how == "gzip" else zstandard.compress(bytes(300_000_000), 1)
    got = 0
    tracemalloc.start()
    try:
        with pytest.raises(ProbeFileDamaged, match="larger than 100000 bytes"):
            for piece in inflated(io.BytesIO(bomb).read, member(bomb, 100_000, how), "x.probe"):
                got += len(piece)
        assert got <= 100_000
        assert tracemalloc.get_traced_memory()[1] < 80_000_000
    finally:
        tracemalloc.stop()


def test_pieces_are_bounded(reader: str) -> None:
    how = READERS[reader]
    data = bytes(100_000_000)
    most = (1 << 25) if reader == "zstandard" else CHUNK
    stored = packed(data, how)
    sizes = [len(piece) for piece in inflated(io.BytesIO(stored).read, member(stored, len(data), how), "x.probe")]
    assert sum(sizes) == len(data) and max(sizes) <= most


def test_a_frame_that_asks_for_much_memory_is_refused(reader: str) -> None:
    if READERS[reader] == "gzip":
        # deflate has one window size: the largest there is was made to be read.
        assert unpacked(packed(b"x" * 70_000, "gzip"), 70_000, "gzip") == b"x" * 70_000
        return
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    greedy = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = random.Random(2).randbytes(1 << 20)
    stored = greedy.compress(data) + greedy.flush()
    with pytest.raises(ProbeFileDamaged, match="member data/x does not inflate"):
        unpacked(stored, len(data), "zstd")


def test_what_goes_on_behind_its_end_is_refused(reader: str) -> None:
    how = READERS[reader]
    for more in (b"more", packed(b"", how), packed(b"again", how), bytes(1 << 19)):
        with pytest.raises(ProbeFileDamaged, match=r"behind its end|does not inflate to 7|larger than 7"):
            unpacked(packed(b"[1,2,3]", how) + more, 7, how)


def test_every_cut_is_refused(reader: str) -> None:
    how = READERS[reader]
    data = bytes(range(256)) * 3
    stored = packed(data, how)
    for length in range(len(stored)):
        with pytest.raises(ProbeFileDamaged, match="does not inflate"):
            unpacked(stored[:length], len(data), how)


def probe_of(folder: Path, how: Any) -> Path:
    (folder / "tool").write_bytes(b"#!tool" * 9)
    first = make_checkpoint(folder / "first", [1, 0, 2, 3], mm=b"memory map")
    second = make_checkpoint(folder / "second", [3, 4, 0, 1])
    write_probe(
        folder / "x.probe",
        {"program": "tool"},
        [PhaseCheckpoint(5, first), PhaseCheckpoint(2, second)],
        [ContainedFile("/usr/bin/tool", folder / "tool", 0o100755, "program")],
        {"profile.json": b"[1,2,3]"},
        how,
    )
    return folder / "x.probe"


def test_a_whole_probe(reader: str, tmp_path: Path) -> None:
    path = probe_of(tmp_path, READERS[reader])
    with open_probe(path) as probe:
        probe.verify()
        assert {one.compression for one in probe.members.values()} == {READERS[reader]}
        assert probe.read_data("profile.json") == b"[1,2,3]"
        for phase, name in ((2, "second"), (5, "first")):
            probe.extract_phase(phase, tmp_path / "out" / name)
            assert contents(tmp_path / "out" / name) == contents(tmp_path / name)


def test_flipped_bits_are_refused(reader: str, tmp_path: Path) -> None:
    path = probe_of(tmp_path, READERS[reader])
    whole = path.read_bytes()
    with open_probe(path) as probe:
        front = min(one.offset for one in probe.members.values())
    for position in range(front, len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with open_probe(path) as probe, pytest.raises(ProbeFileDamaged):
            probe.verify()


def test_a_flipped_bit_under_a_right_checksum_is_refused_or_harmless(reader: str) -> None:
    how = READERS[reader]
    data = b"".join(map(page, range(1, 9)))
    stored = packed(data, how)
    for position in range(len(stored)):
        changed = bytearray(stored)
        changed[position] ^= 1 << position % 8
        try:
            found = unpacked(bytes(changed), len(data), how)
        except ProbeFileDamaged:
            continue
        assert len(found) == len(data)


def test_impossible_sizes_are_refused_by_what_each_compression_can_do(tmp_path: Path) -> None:
    path = probe_of(tmp_path, "zstd")
    with open_probe(path) as probe:
        number, one = next((n, m) for n, m in enumerate(probe.members.values()) if m.name == "data/profile.json")
    for how, most in (("zstd", 1 << 15), ("gzip", 1032)):
        for raw, allowed in ((most * one.stored_size, True), (most * one.stored_size + 1, False)):
            rewrite(path, lambda d, raw=raw, how=how: d["members"][number].update(raw_size=raw, compression=how))
            if allowed:
                open_probe(path).close()
                continue
            with pytest.raises(ProbeFileDamaged, match="more than is possible"):
                open_probe(path)


def test_a_file_of_zeros_is_a_file(reader: str, tmp_path: Path) -> None:
    """It packs as tightly as anything can: what the writer makes, the reader must accept."""
    with (tmp_path / "zeros").open("wb") as out:
        out.truncate(50_000_000)
    folder = make_checkpoint(tmp_path / "c", [1])
    file = ContainedFile("/zeros", tmp_path / "zeros", 0o644, "input")
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, folder)], [file], compression=READERS[reader])  # type: ignore[arg-type]
    with open_probe(tmp_path / "x.probe") as probe:
        probe.extract_file(probe.files[0].sha256, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == bytes(50_000_000)


def without_zstd(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compression, "_TWINS", ("no_such_module",))
    patch.setattr(compression, "_PACKAGE", "no_such_module")


def test_a_node_without_zstd_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = probe_of(tmp_path, "zstd")
    without_zstd(monkeypatch)
    with open_probe(path) as probe:
        assert probe.manifest == {"program": "tool"}
        for use_it, name in (
            (probe.verify, "data/profile.json"),
            (lambda: probe.extract_phase(5, tmp_path / "out"), "phase/5/index"),
        ):
            with pytest.raises(ToolMissing, match=rf"x\.probe: member {name} is compressed with zstd.*install"):
                use_it()
    assert not (tmp_path / "out").exists()


def test_packing_without_zstd_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zstd(monkeypatch)
    with pytest.raises(ToolMissing, match="zstandard"):
        probe_of(tmp_path, "zstd")
    assert not list(tmp_path.glob("*.probe*"))


def test_packing_by_pythons_own_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "twin")
    path = probe_of(tmp_path, "zstd")
    use(monkeypatch, "zstandard")
    with open_probe(path) as probe:
        probe.verify()


def test_unknown_frames_are_refused(tmp_path: Path, reader: str) -> None:
    how = READERS[reader]
    path = probe_of(tmp_path, how)
    skippable = b"\x50\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"[1,2,3]"
    for stored in (b"no stream at all", skippable, b"", os.urandom(50)):
        replace_member(path, "data/profile.json", stored, 7 if stored else 0)
        with open_probe(path) as probe, pytest.raises(ProbeFileDamaged, match="does not inflate"):
            probe.read_data("profile.json")


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_pages_come_from_any_index(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also from indexes that our writer does not make: own pages out of order, repeated, or never used."""
    folder = tmp_path_factory.mktemp("index")
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3), label="new pages of each phase")
    phases, total = [], 0
    for number, count in enumerate(counts):
        make_checkpoint(folder / str(number), list(range(total + 1, total + count + 1)))
        phases.append(PhaseCheckpoint(number, folder / str(number)))
        total += count
    path = folder / "x.probe"
    write_probe(path, {}, phases)
    expected: dict[int, bytes] = {}
    limit = 0
    for number, count in enumerate(counts):
        limit += count
        runs = data.draw(st.lists(a_run(limit), max_size=6), label="runs")
        index = b"".join(first.to_bytes(4, "little") + n.to_bytes(4, "little") for first, n in runs)
        wanted = [page(first + k) if first else page(0) for first, n in runs for k in range(n)]
        expected[number] = b"".join(wanted)
        replace_member(path, f"phase/{number}/index", gzip.compress(index), len(index))
        rewrite(path, images_of(number, len(wanted), data.draw(st.integers(1, 3), label="images")))
    with open_probe(path) as probe:
        for number in data.draw(st.permutations(range(len(counts)))):
            out = folder / f"out-{number}-{data.draw(st.integers(0, 9))}"
            probe.extract_phase(number, out)
            images = sorted(out.glob("pages-*.img"))
            assert b"".join(image.read_bytes() for image in images) == expected[number]
            assert probe.read_pages(1, total) == b"".join(map(page, range(1, total + 1))) if total else True
    for left in sorted(folder.rglob("*"), reverse=True):
        left.unlink() if left.is_file() else left.rmdir()


def a_run(limit: int) -> st.SearchStrategy[tuple[int, int]]:
    """A run of an index that may refer to pages up to `limit`."""
    firsts = st.integers(0, limit)
    return firsts.flatmap(lambda first: st.tuples(st.just(first), st.integers(1, limit - first + 1 if first else 3)))


def images_of(phase: int, pages: int, images: int) -> Callable[[dict[str, Any]], None]:
    """A change of the manifest: the pages of `phase` lie in several images."""
    share = pages // images
    lengths = [share] * (images - 1) + [pages - share * (images - 1)]

    def change(document: dict[str, Any]) -> None:
        found = next(item for item in document["phases"] if item["id"] == phase)
        found["page_images"] = [[f"pages-{number}.img", length] for number, length in enumerate(lengths)]

    return change


def test_pages_used_once_need_no_temporary_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    for name in ("a", "b"):
        make_checkpoint(tmp_path / name, [])
        (tmp_path / name / "pages-1.img").write_bytes(rng.randbytes(300 * PAGE_SIZE) + page(7))
    write_probe(tmp_path / "x.probe", {}, [PhaseCheckpoint(0, tmp_path / "a"), PhaseCheckpoint(1, tmp_path / "b")])
    with open_probe(tmp_path / "x.probe", scratch=tmp_path) as probe:
        for phase, name in ((1, "b"), (0, "a")):
            probe.extract_phase(phase, tmp_path / "out" / name)
            assert contents(tmp_path / "out" / name) == contents(tmp_path / name)
        spool = probe._spooled
        assert spool is not None
        assert os.fstat(spool.file.fileno()).st_blocks * 512 == PAGE_SIZE


def test_unpackers_say_whether_they_have_ended(reader: str) -> None:
    unpack = unpacker(READERS[reader], "x")
    stored = packed(b"contents", READERS[reader])
    first = b"".join(unpack.feed(stored[:-1]))
    assert not unpack.ended()
    assert first + b"".join(unpack.feed(stored[-1:])) + b"".join(unpack.finish()) == b"contents" and unpack.ended()
