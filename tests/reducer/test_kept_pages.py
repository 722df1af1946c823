# SPDX-License-Identifier: Apache-2.0
"""Pages of phases that are kept once, compressed: read back as they were, damage named, nothing left of a full disk."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.flat.file_names import PACKED, SHARED_PAGES
from checkpoint.linux import PAGE_SIZE
from reducer import kept_pages
from reducer.archive import PhaseCheckpoint, open_probe, write_probe
from reducer.kept_pages import KeptPages, remove_kept
from reducer.packed_image import BLOCK_PAGES, BLOCKS, ROW, TABLE, PackedImage, pages_in_place
from reducer.page_spool import RUN

IMAGE = "pages-7.img"
numbers = st.lists(st.integers(0, 60), max_size=80)


def page(number: int) -> bytes:
    """The page of zeros, and others that do not compress."""
    return random.Random(number).randbytes(PAGE_SIZE) if number else bytes(PAGE_SIZE)


def contents(wanted: Iterable[int]) -> bytes:
    return b"".join(map(page, wanted))


def phase(folder: Path, name: str, wanted: Iterable[int]) -> Path:
    """A phase's folder with these pages in its image."""
    images = folder / name
    images.mkdir()
    (images / IMAGE).write_bytes(contents(wanted))
    return images


def packed(kept: KeptPages, name: str, wanted: Iterable[int]) -> Path:
    images = phase(kept.folder, name, wanted)
    kept.pack(images, images / IMAGE)
    return images


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=5), st.data())
def test_every_image_comes_back(
    tmp_path_factory: pytest.TempPathFactory, images: list[list[int]], data: st.DataObject
) -> None:
    kept = KeptPages(tmp_path_factory.mktemp("kept"))
    folders = [packed(kept, str(number), wanted) for number, wanted in enumerate(images)]
    for folder, wanted in zip(folders, images, strict=True):
        assert [path.name for path in folder.iterdir()] == [PACKED]
        with pages_in_place(folder):
            assert (folder / IMAGE).read_bytes() == contents(wanted)
        assert [path.name for path in folder.iterdir()] == [PACKED]
        begin = data.draw(st.integers(0, len(wanted)))
        count = data.draw(st.integers(0, len(wanted)))
        with PackedImage(folder) as image:
            assert image.size == len(wanted) * PAGE_SIZE
            assert image.read(count * PAGE_SIZE, begin * PAGE_SIZE) == contents(wanted[begin : begin + count])


def test_a_page_is_kept_once(tmp_path: Path) -> None:
    kept = KeptPages(tmp_path)
    packed(kept, "first", range(100))
    before = (tmp_path / BLOCKS).stat().st_size
    packed(kept, "second", [*range(99, 0, -1), 0, 0])
    assert (tmp_path / BLOCKS).stat().st_size == before
    packed(kept, "third", [*range(50), 200])
    assert (tmp_path / BLOCKS).stat().st_size - before < 2 * PAGE_SIZE


def test_what_compresses_is_small(tmp_path: Path) -> None:
    images = phase(tmp_path, "one", [])
    (images / IMAGE).write_bytes(b"".join(n.to_bytes(2, "little") * (PAGE_SIZE // 2) for n in range(1, 500)))
    whole = (images / IMAGE).stat().st_size
    KeptPages(tmp_path).pack(images, images / IMAGE)
    assert (tmp_path / BLOCKS).stat().st_size < 0.05 * whole


def test_pages_of_zeros_are_holes(tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", [0] * 4000 + [1])
    assert (images / PACKED).stat().st_size < 100
    with pages_in_place(images):
        status = (images / IMAGE).stat()
        assert (status.st_size, status.st_blocks * 512 < 400 * PAGE_SIZE) == (4001 * PAGE_SIZE, True)


def test_files_with_memory_are_for_nobody_else(tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", [1, 2])
    for path in (tmp_path / BLOCKS, tmp_path / TABLE, images / PACKED):
        assert path.stat().st_mode & 0o777 == 0o600
    with pages_in_place(images):
        assert (images / IMAGE).stat().st_mode & 0o777 == 0o600


def test_another_one_adds_to_what_is_there(tmp_path: Path) -> None:
    first = packed(KeptPages(tmp_path), "first", range(1, 20))
    # What a killed build had begun to write.
    for name in (BLOCKS, TABLE):
        with (tmp_path / name).open("ab") as file:
            file.write(b"torn" * (1 << 18 if name == BLOCKS else 1))
    second = packed(KeptPages(tmp_path), "second", range(10, 40))
    assert (tmp_path / BLOCKS).stat().st_size < 1 << 18
    for images, wanted in ((first, range(1, 20)), (second, range(10, 40))):
        with pages_in_place(images):
            assert (images / IMAGE).read_bytes() == contents(wanted)


def test_a_full_disk_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptPages(tmp_path)
    first = packed(kept, "first", range(30))
    second = phase(tmp_path, "second", range(20, 90))
    before, left = files(tmp_path), [4]

    def full(descriptor: int, view: memoryview, offset: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(descriptor, view, offset)

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr(kept_pages, "write_all", full)
        kept.pack(second, second / IMAGE)
    assert files(tmp_path) == before
    # Numbers of what was taken back belong to others now.
    kept.pack(second, second / IMAGE)
    for images, wanted in ((first, range(30)), (second, range(20, 90))):
        with pages_in_place(images):
            assert (images / IMAGE).read_bytes() == contents(wanted)


def test_an_image_that_is_cut_off_is_not_packed(tmp_path: Path) -> None:
    images = phase(tmp_path, "one", range(3))
    with (images / IMAGE).open("ab") as file:
        file.write(b"x")
    with pytest.raises(ProbeFileDamaged, match="whole pages"):
        KeptPages(tmp_path).pack(images, images / IMAGE)
    assert [path.name for path in images.iterdir()] == [IMAGE]


def test_a_phase_whose_pages_are_where_they_belong(tmp_path: Path) -> None:
    images = phase(tmp_path, "one", range(3))
    with pages_in_place(images):
        pass
    assert (images / IMAGE).read_bytes() == contents(range(3))


def test_what_was_put_in_place_is_taken_away_on_an_error(tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", range(30))
    with pytest.raises(KeyboardInterrupt), pages_in_place(images):
        raise KeyboardInterrupt
    assert [path.name for path in images.iterdir()] == [PACKED]
    # A killed build leaves what it had put in place, whole or not.
    (images / IMAGE).write_bytes(b"torn")
    with pages_in_place(images):
        assert (images / IMAGE).read_bytes() == contents(range(30))


def huge(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [flipped, huge, cut, emptied])
@pytest.mark.parametrize("name", [BLOCKS, TABLE, f"one/{PACKED}"])
def test_damage_is_named(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", range(1, BLOCK_PAGES + 1))
    damage(tmp_path / name)
    said = r"one/pages.packed: damaged: .*; build without --resume"
    with pytest.raises(ProbeFileDamaged, match=said), pages_in_place(images):
        pass
    assert not (images / IMAGE).exists()


def test_another_block_in_its_place_is_seen(tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", range(1, 2 * BLOCK_PAGES + 1))
    table = tmp_path / TABLE
    (_, _, check), (offset, size, _) = ROW.iter_unpack(table.read_bytes())
    table.write_bytes(ROW.pack(offset, size, check) + ROW.pack(offset, size, check))
    with pytest.raises(ProbeFileDamaged, match="is not what was written at"), pages_in_place(images):
        pass


def test_a_number_that_no_page_has_is_seen(tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", range(1, 4))
    listed = (images / PACKED).read_bytes()
    (images / PACKED).write_bytes(listed[: -RUN.size] + RUN.pack(9, 3))
    with pytest.raises(ProbeFileDamaged, match="names page 11, which is not kept"), pages_in_place(images):
        pass


@pytest.mark.parametrize("name", [BLOCKS, TABLE, f"one/{PACKED}"])
def test_a_file_that_is_gone_is_named(name: str, tmp_path: Path) -> None:
    images = packed(KeptPages(tmp_path), "one", range(9))
    (tmp_path / name).unlink()
    with pytest.raises(StorageError, match="No such file"), PackedImage(images):
        pass


def test_a_link_in_their_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / BLOCKS).symlink_to(victim)
    images = phase(tmp_path, "one", range(9))
    with pytest.raises(StorageError):
        KeptPages(tmp_path).pack(images, images / IMAGE)
    assert victim.read_bytes() == b"mine" and (images / IMAGE).exists()


def test_a_probe_is_the_same(tmp_path: Path) -> None:
    """Packed phases beside whole ones: what both hold is stored once, as from whole ones alone."""
    kept, wanted = KeptPages(tmp_path), {1: range(40), 2: [*range(20, 60), 0, 3], 3: range(59, 0, -1)}
    folders = {number: phase(tmp_path, str(number), pages) for number, pages in wanted.items()}
    for folder in folders.values():
        (folder / "core.img").write_bytes(b"x")
        # Shared memory is never packed.
        (folder / SHARED_PAGES).write_bytes(contents(range(50, 70)))
    phases = [PhaseCheckpoint(number, folder) for number, folder in folders.items()]
    before = write_probe(tmp_path / "whole.probe", {}, phases)
    for number in (1, 3):
        kept.pack(folders[number], folders[number] / IMAGE)
    assert write_probe(tmp_path / "packed.probe", {}, phases) == before
    assert (tmp_path / "packed.probe").read_bytes() == (tmp_path / "whole.probe").read_bytes()
    with open_probe(tmp_path / "packed.probe", tmp_path) as archive:
        archive.extract_phase(3, tmp_path / "out")
    assert (tmp_path / "out" / IMAGE).read_bytes() == contents(wanted[3])
    assert (tmp_path / "out" / SHARED_PAGES).read_bytes() == contents(range(50, 70))


def test_nothing_is_left_of_them(tmp_path: Path) -> None:
    """And no page that was removed is taken for one that is there."""
    kept = KeptPages(tmp_path)
    packed(kept, "one", range(9))
    remove_kept(tmp_path)
    remove_kept(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    images = packed(kept, "two", range(5, 40))
    with pages_in_place(images):
        assert (images / IMAGE).read_bytes() == contents(range(5, 40))
