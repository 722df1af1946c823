# SPDX-License-Identifier: Apache-2.0
"""Pages go into the store once and come back byte for byte."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.linux import PAGE_SIZE
from reducer.page_store import PageStore


def page(content: int) -> bytes:
    """A page that is all zeros for 0 and different for every other content."""
    return content.to_bytes(8, "little") * (PAGE_SIZE // 8)


def runs(index: bytes) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("<II", index))


def rebuilt(index: bytes, stored: bytes) -> bytes:
    out = b""
    for first, count in runs(index):
        out += stored[(first - 1) * PAGE_SIZE :][: count * PAGE_SIZE] if first else bytes(count * PAGE_SIZE)
    return out


IMAGES = st.lists(st.lists(st.integers(0, 6), max_size=12), min_size=1, max_size=4)


@pytest.mark.parametrize("page_hash", [hash, lambda content: content[0] % 2, lambda content: 7])
@given(images=IMAGES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_images_come_back_whatever_the_hash(tmp_path: Path, page_hash, images: list[list[int]]) -> None:
    stored = bytearray()
    with PageStore(page_hash) as store:
        for number, contents in enumerate(images):
            path = tmp_path / f"pages-{number}.img"
            path.write_bytes(b"".join(map(page, contents)))
            known = store.distinct_pages
            index = store.add_image(path, stored.extend)
            assert rebuilt(index, bytes(stored)) == path.read_bytes()
            assert store.distinct_pages * PAGE_SIZE == len(stored)
            # No page of an image may refer to one that arrives after it.
            assert all(first + count - 1 <= store.distinct_pages for first, count in runs(index) if first)
            assert store.distinct_pages >= known
        everything = [content for contents in images for content in contents]
        assert store.distinct_pages == len(set(everything) - {0})
        assert (store.pages, store.zero_pages) == (len(everything), everything.count(0))


def test_pages_in_order_make_one_run(tmp_path: Path) -> None:
    path = tmp_path / "pages-1.img"
    path.write_bytes(b"".join(map(page, range(1, 701))) + bytes(300 * PAGE_SIZE))
    with PageStore() as store:
        first = store.add_image(path, lambda data: None)
        assert runs(first) == [(1, 700), (0, 300)]
        new: list[bytes] = []
        assert store.add_image(path, new.append) == first
        assert new == []


def test_pages_that_differ_in_one_bit_are_kept_apart(tmp_path: Path) -> None:
    first = bytearray(os.urandom(PAGE_SIZE))
    path = tmp_path / "pages-1.img"
    variants = [bytes(first)]
    for bit in (0, 7, 4095 * 8 + 7, 2048 * 8):
        changed = bytearray(first)
        changed[bit // 8] ^= 1 << bit % 8
        variants.append(bytes(changed))
    path.write_bytes(b"".join(variants))
    stored = bytearray()
    with PageStore() as store:
        assert runs(store.add_image(path, stored.extend)) == [(1, 5)]
    assert stored == path.read_bytes()


def test_an_almost_zero_page_is_not_a_zero_page(tmp_path: Path) -> None:
    path = tmp_path / "pages-1.img"
    path.write_bytes(bytes(PAGE_SIZE) + bytes(PAGE_SIZE - 1) + b"\1" + b"\1" + bytes(PAGE_SIZE - 1))
    with PageStore() as store:
        assert runs(store.add_image(path, lambda data: None)) == [(0, 1), (1, 2)]


def test_holes_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pages-1.img"
    with path.open("wb") as out:
        out.truncate(5000 * PAGE_SIZE)
    new: list[bytes] = []
    with PageStore() as store:
        assert runs(store.add_image(path, new.append)) == [(0, 5000)]
    assert new == []


def test_input_that_is_no_pages_image(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(bytes(PAGE_SIZE + 1))
    with PageStore() as store:
        with pytest.raises(ProbeFileDamaged, match="odd does not consist of whole pages"):
            store.add_image(tmp_path / "odd", lambda data: None)
        with pytest.raises(StorageError, match="missing"):
            store.add_image(tmp_path / "missing", lambda data: None)
        with pytest.raises(StorageError, match=os.strerror(errno.EISDIR)):
            store.add_image(tmp_path, lambda data: None)


def test_close_lets_go_of_every_image(tmp_path: Path) -> None:
    path = tmp_path / "pages-1.img"
    path.write_bytes(page(1))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with PageStore() as store:
        for _ in range(5):
            store.add_image(path, lambda data: None)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
