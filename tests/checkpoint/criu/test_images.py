# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints that CRIU made of real processes, and refusing what it would not have made."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_checkpoint import HOLDER, WORKER, dump_process

from checkpoint.criu.entries import MAGIC, encode_entries, read_entries, write_entries
from checkpoint.criu.fields import CoreEntry, InventoryEntry, PagemapEntry, ThreadCoreEntry
from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.pagemap import read_pagemap, write_pagemap
from checkpoint.criu.protobuf import Field, Message
from checkpoint.criu.unsupported import unsupported
from checkpoint.errors import ProbeFileDamaged, StorageError
from checkpoint.linux import MAP_HUGETLB, PAGE_SIZE
from checkpoint.state.own_descriptors import OwnDescriptors, Watch
from checkpoint.state.process_state import (
    Descriptor,
    File,
    FileKind,
    PageRun,
    ProcessState,
    VmaStatus,
    file_mappings,
    open_files,
)

INPUT = bytes(range(256)) * 100


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    (folder / "input").write_bytes(INPUT)
    return dump_process(WORKER, [folder / "input", folder / "target"], folder / "images")


@pytest.fixture(scope="module")
def images(dumped: Path) -> ProcessState:
    return read_checkpoint(dumped)


@pytest.fixture
def copy(dumped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dumped, tmp_path / "copy"))


def test_task_and_registers(images: ProcessState) -> None:
    assert [task.threads for task in images.tasks] == [(images.pid,)]
    assert images.state == 3 and images.umask == 0o27
    assert images.comm == Path(sys.executable).resolve().name[:15] or images.comm.startswith("python")
    assert images.registers["cs"] == 0x33 and images.registers["ss"] == 0x2B
    code = [vma for vma in images.vmas if vma.start <= images.registers["ip"] < vma.end]
    assert len(code) == 1 and code[0].prot & 4
    stack = [vma for vma in images.vmas if vma.start <= images.registers["sp"] < vma.end]
    assert len(stack) == 1 and stack[0].prot == 3


def test_open_files(images: ProcessState, dumped: Path) -> None:
    found = {item.fd: item for item in open_files(images)}
    assert sorted(found) == sorted(item.fd for item in images.descriptors)
    assert found[0].path == "/dev/null" and not found[0].is_regular
    assert found[1].path == str(dumped.with_suffix(".out")) and found[1].writable
    assert found[1].flags & os.O_APPEND
    by_path = {item.path: item for item in found.values()}
    source = by_path[str(dumped.parent / "input")]
    assert (source.offset, source.writable, source.is_regular) == (3, False, True)
    assert by_path[str(dumped.parent / "target")].writable
    sizes = {file.path: file.size for file in images.files.values()}
    assert sizes[source.path] == len(INPUT)
    assert sizes[found[1].path] is None


def test_file_mappings_name_the_program_its_libraries_and_its_data(images: ProcessState, dumped: Path) -> None:
    mappings = file_mappings(images)
    paths = {item.path for item in mappings}
    assert images.files[images.exe_file_id].path == str(Path(sys.executable).resolve())
    assert images.files[images.exe_file_id].path in paths
    assert any("/libc.so" in path or "/libc-" in path for path in paths)
    mapped = next(item for item in mappings if item.path == str(dumped.parent / "input"))
    assert (mapped.offset, mapped.shared, mapped.prot) == (0, False, 1)
    assert mapped.end - mapped.start == -(-len(INPUT) // PAGE_SIZE) * PAGE_SIZE


def test_pages_hold_the_memory_of_the_process(images: ProcessState) -> None:
    assert images.pages_image.stat().st_size == images.pages * PAGE_SIZE
    vdso = next(vma for vma in images.vmas if vma.status & VmaStatus.VDSO)
    position = 0
    for run in images.page_runs:
        if run.vaddr <= vdso.start < run.end:
            break
        position += run.pages
    with images.pages_image.open("rb") as raw:
        raw.seek(position * PAGE_SIZE + (vdso.start - run.vaddr))
        assert raw.read(4) == b"\x7fELF"
    assert not run.flags & 2


def test_a_plain_process_can_be_held(images: ProcessState, dumped: Path) -> None:
    assert unsupported(images) == []
    assert unsupported(dumped) == []


def test_every_image_is_written_back_as_it_was(dumped: Path, tmp_path: Path) -> None:
    seen = set()
    for path in sorted(dumped.glob("*.img")):
        kind = path.stem.split("-")[0]
        if kind not in MAGIC:
            continue
        seen.add(kind)
        write_entries(tmp_path / path.name, kind, read_entries(path, kind))
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert seen == MAGIC.keys() - {"remap-fpath", "ghost-file", "pipes-data", "sk-queues"}


def test_a_rewritten_page_map_says_the_length_in_both_fields(images: ProcessState, copy: Path) -> None:
    path = copy / f"pagemap-{images.pid}.img"
    write_pagemap(path, images.pages_id, images.page_runs)
    assert read_pagemap(path) == (images.pages_id, images.page_runs)
    assert all(
        entry.integer(PagemapEntry.compat_nr_pages) == entry.integer(PagemapEntry.nr_pages)
        for entry in read_entries(path, "pagemap")[1:]
    )
    assert read_checkpoint(copy).page_runs == images.page_runs


def test_page_map_of_criu_4_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pagemap-1.img"
    run = Message([Field(1, 0, 0x1000), Field(2, 0, 0), Field(4, 0, 6), Field(5, 0, 3)])
    write_entries(path, "pagemap", [Message([Field(1, 0, 1)]), run])
    assert read_pagemap(path) == (1, (PageRun(0x1000, 3, 6),))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({1: 0x1000, 2: 1, 4: 1}, "parent image"),
        ({1: 0x1000, 2: 1, 3: 1, 4: 4}, "parent image"),
        ({1: 0x1000, 2: 1, 4: 2}, "flags 0x2"),
        ({1: 0x1000, 2: 1, 4: 12}, "flags 0xc"),
        ({1: 0x1000, 2: 1}, "flags 0x0"),
        ({1: 0x1000, 2: 1, 4: 4, 6: 1}, "field 6"),
        ({1: 0x1000, 2: 1, 4: 4, 5: 2}, "two lengths"),
        ({1: 0x1000, 2: 0, 4: 4}, "out of place"),
        ({1: 0x1001, 2: 1, 4: 4}, "out of place"),
        ({1: 2**64 - 4096, 2: 2, 4: 4}, "out of place"),
        ({2: 1, 4: 4}, "field 1 is missing"),
    ],
)
def test_odd_page_runs_are_refused(tmp_path: Path, fields: dict[int, int], says: str) -> None:
    path = tmp_path / "pagemap-1.img"
    run = Message([Field(number, 0, value) for number, value in fields.items()])
    write_entries(path, "pagemap", [Message([Field(1, 0, 1)]), run])
    with pytest.raises(ProbeFileDamaged, match=says):
        read_pagemap(path)


def test_overlapping_page_runs_are_refused(tmp_path: Path) -> None:
    write_pagemap(tmp_path / "p", 1, [PageRun(0x1000, 2, 6), PageRun(0x2000, 1, 6)])
    with pytest.raises(ProbeFileDamaged, match="out of place"):
        read_pagemap(tmp_path / "p")


def test_a_page_outside_all_mappings_is_refused(images: ProcessState, copy: Path) -> None:
    runs = [PageRun(0x1000, 1, 6), *images.page_runs]
    write_pagemap(copy / f"pagemap-{images.pid}.img", images.pages_id, runs)
    with pytest.raises(ProbeFileDamaged, match="0x1000 belongs to no mapping"):
        read_checkpoint(copy)


@pytest.mark.parametrize("change", [-PAGE_SIZE, -1, 1, PAGE_SIZE])
def test_pages_image_of_another_size_is_refused(images: ProcessState, copy: Path, change: int) -> None:
    path = copy / images.pages_image.name
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(ProbeFileDamaged, match=r"pages-1.*page map asks for"):
        read_checkpoint(copy)


def test_a_missing_image_is_named(copy: Path) -> None:
    for path in sorted(copy.glob("*.img")):
        if path.stem.split("-")[0] not in {*MAGIC, "pages"}:
            continue
        moved = path.rename(path.with_suffix(".away"))
        with pytest.raises(ProbeFileDamaged, match=path.name):
            read_checkpoint(copy)
        moved.rename(path)
    read_checkpoint(copy)


def test_an_unknown_image_version_is_named(copy: Path) -> None:
    entries = read_entries(copy / "inventory.img", "inventory")
    entries[0].set_integer(InventoryEntry.img_version, 7)
    write_entries(copy / "inventory.img", "inventory", entries)
    with pytest.raises(ProbeFileDamaged, match="image version 7"):
        read_checkpoint(copy)


def test_an_image_of_another_kind_is_refused(images: ProcessState, dumped: Path) -> None:
    with pytest.raises(ProbeFileDamaged, match="does not start like a mm image"):
        read_entries(dumped / f"core-{images.pid}.img", "mm")


def entry_ends(image: bytes) -> set[int]:
    """Where entries of an image end: two words of magic, then each entry behind its size."""
    at, ends = 8, set()
    while at < len(image):
        at += 4 + int.from_bytes(image[at : at + 4], "little")
        ends.add(at)
    return ends


def test_cut_images_are_refused(images: ProcessState, copy: Path) -> None:
    for kind in ("inventory", f"mm-{images.pid}", f"core-{images.pid}", f"pagemap-{images.pid}", "files"):
        path = copy / f"{kind}.img"
        whole = path.read_bytes()
        # Every byte of the small images, and a spread of the large ones.
        for cut in range(0, len(whole), max(1, len(whole) // 97)):
            if kind == "files" and cut in entry_ends(whole):
                # A file that nothing refers to may be missing; the others are missed by what refers to them.
                continue
            path.write_bytes(whole[:cut])
            with pytest.raises(ProbeFileDamaged):
                read_checkpoint(copy)
        path.write_bytes(whole)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_flipped_bits_never_end_in_another_error(data: st.DataObject, dumped: Path, copy: Path) -> None:
    names = [path.name for path in sorted(dumped.glob("*.img")) if path.stem.split("-")[0] in MAGIC]
    name = data.draw(st.sampled_from(names))
    content = bytearray((dumped / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, 8 * len(content) - 1))
        content[position // 8] ^= 1 << position % 8
    (copy / name).write_bytes(content)
    try:
        found = read_checkpoint(copy)
        unsupported(found)
        file_mappings(found)
        open_files(found)
    except (ProbeFileDamaged, StorageError):
        pass
    finally:
        shutil.copy(dumped / name, copy / name)


def test_everything_a_probe_cannot_hold_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    found = "\n".join(unsupported(dump_process(HOLDER, [tmp_path / "file"], tmp_path / "images")))
    for expected in (
        "2 processes (child ",
        "2 threads in process ",
        "pending signal 10 (SIGUSR1)",
        "descriptor 10 is a memfd",
        "is a timer that has expired and goes on once it is read, which only direct capture holds",
        "is a timer that ends when the clock is set (TFD_TIMER_CANCEL_ON_SET)",
        "descriptor 13 is a named pipe",
        "shared memory (anonymous or of a memfd) at 0x",
        f"{tmp_path}/file mapped shared and writable at 0x",
    ):
        assert expected in found, f"{expected} not in:\n{found}"
    # Pipe, socket pair, eventfd, epoll set, timer, signalfd, deleted files: these lead to nobody else.
    for harmless in ("descriptor 3 ", "descriptor 5 ", "descriptor 7 ", "descriptor 8 ", "descriptor 9 ", "deleted"):
        assert harmless not in found, f"{harmless} in:\n{found}"
    assert "descriptor 12 " not in found
    assert found.count("is a timer") == 2, "one that runs is restored"


def _flag_vma(images: ProcessState, *, status: int = 0, flags: int = 0) -> ProcessState:
    first = images.vmas[0]
    return replace(images, vmas=(replace(first, status=first.status | status, flags=first.flags | flags),))


def _in_vdso(images: ProcessState) -> ProcessState:
    vdso = next(vma for vma in images.vmas if vma.status & VmaStatus.VDSO)
    return replace(images, registers={**images.registers, "ip": vdso.start + 0x500})


def _with_device(images: ProcessState) -> ProcessState:
    null = next(file for file in images.files.values() if file.path == "/dev/null")
    return replace(images, files={**images.files, null.id: replace(null, path="/dev/kvm")})


def _with_watched_output(images: ProcessState) -> ProcessState:
    """An epoll set that watches what is captured as /dev/null: in the program a pipe that others read."""
    found = File(97, FileKind.EPOLL, "", os.O_RDWR, 0, None, 0)
    item = Descriptor(97, found.id, 0, found.kind)
    own = OwnDescriptors(sets={found.id: (os.O_RDWR, (Watch(0, 4, 0),))})
    return replace(images, files={**images.files, 97: found}, descriptors=(*images.descriptors, item), own=own)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_with_watched_output, "descriptor 97 is an epoll set that watches a pipe to another process (0)"),
        (_in_vdso, "an instruction pointer inside the vDSO"),
        (_with_device, "descriptor 0 is the device /dev/kvm"),
        (lambda images: replace(images, filtered=True), "a seccomp filter"),
        (lambda images: replace(images, x86_64=False), "not x86-64"),
        (lambda images: replace(images, state=6), "already ended"),
        (lambda images: _flag_vma(images, flags=MAP_HUGETLB), "huge pages"),
        (lambda images: _flag_vma(images, status=VmaStatus.SYSV_IPC), "System V shared memory"),
        (lambda images: _flag_vma(images, status=VmaStatus.AIO_RING), "asynchronous I/O"),
        (lambda images: _flag_vma(images, status=VmaStatus.SHADOW_STACK), "shadow stack"),
    ],
)
def test_rarer_things_are_named(
    images: ProcessState, change: Callable[[ProcessState], ProcessState], says: str
) -> None:
    assert any(says in reason for reason in unsupported(change(images)))


def _set_machine(core: Message) -> None:
    core.set_integer(CoreEntry.mtype, 3)


def _set_filter(core: Message) -> None:
    thread = core.message(CoreEntry.thread_core)
    assert thread is not None
    thread.set_integer(ThreadCoreEntry.seccomp_mode, 2)
    core.set_bytes(CoreEntry.thread_core, thread.encode())


@pytest.mark.parametrize(("change", "says"), [(_set_machine, "not x86-64"), (_set_filter, "a seccomp filter")])
def test_what_the_core_image_alone_tells_is_read(copy: Path, change: Callable[[Message], None], says: str) -> None:
    path = next(copy.glob("core-*.img"))
    (core,) = read_entries(path, "core")
    change(core)
    write_entries(path, "core", [core])
    assert any(says in reason for reason in unsupported(copy))


def test_an_unknown_kind_of_descriptor_is_refused(images: ProcessState) -> None:
    files = {
        **images.files,
        images.descriptors[0].file_id: replace(next(iter(images.files.values())), kind=99),
    }
    assert "descriptor 0 is of unknown kind 99" in unsupported(replace(images, files=files))


def test_a_full_disk_leaves_the_old_image(dumped: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy / "inventory.img"
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match="No space left"):
        write_entries(path, "inventory", [Message()])
    assert path.read_bytes() == (dumped / "inventory.img").read_bytes()
    assert not path.with_name("inventory.img.part").exists()


def test_entries_of_every_kind_start_with_their_magic() -> None:
    heads = {encode_entries(kind, []) for kind in MAGIC}
    assert len(heads) == len(MAGIC)
    assert len(encode_entries("inventory", [])) == 4
