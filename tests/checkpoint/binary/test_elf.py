# SPDX-License-Identifier: Apache-2.0
"""ELF files, sound and damaged: ranges of functions, and one error whatever is wrong."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from bare import bare, forget_frames
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import BAD_FILES, VARIANTS, bad_file, build, symbols

from checkpoint.binary import elf
from checkpoint.binary.elf import ElfImage, check_runnable, read_image
from checkpoint.binary.sites import _analyse
from checkpoint.errors import ProgramNotRunnable
from checkpoint.process.program import resolve_program

SECONDS_FOR_ANY_FILE = 5.0


@pytest.fixture(scope="module")
def small(builds: Path) -> Path:
    return build("short", builds)


def covers(image: ElfImage, address: int) -> bool:
    return bool(((image.functions[:, 0] <= address) & (address < image.functions[:, 1])).any())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_of_linking(variant: str, builds: Path) -> None:
    image = read_image(str(build("flags", builds, variant)))
    assert image.position_independent == (variant not in ("nopie", "static"))
    assert (image.interpreter is None) == variant.startswith("static")
    assert image.sha256 == hashlib.sha256(image.data).hexdigest()
    places = symbols(build("flags", builds, "pie" if variant == "stripped" else variant))
    assert covers(image, places["main"]) and covers(image, places["flags_add"]) and covers(image, image.entry)
    assert (image.functions[1:, 0] >= image.functions[:-1, 1]).all()
    low, high = image.executable_ranges()[0]
    assert low <= places["main"] < high
    assert image.bytes_at(places["main"], 4) and image.bytes_at(1 << 40, 4) == b""


def changed(path: Path, folder: Path, *arguments: str) -> Path:
    subprocess.run(["objcopy", *arguments, str(path), str(folder / "changed")], check=True)
    return folder / "changed"


def test_symbols_serve_where_the_frames_are_gone(builds: Path, tmp_path: Path) -> None:
    path = build("flags", builds, "nopie")
    without = changed(path, tmp_path, "--remove-section=.eh_frame", "--remove-section=.eh_frame_hdr")
    data = bytearray(without.read_bytes())
    forget_frames(data)
    without.write_bytes(data)
    image, places = read_image(str(without)), symbols(path)
    assert places["main"] in image.functions[:, 0] and places["flags_add"] in image.functions[:, 0]
    assert len(_analyse(image)) >= 60


def test_symbols_are_not_read_where_frames_serve(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Qt program's took two seconds."""
    monkeypatch.setattr(elf, "_symbol_ranges", None)
    elf._kept.cache_clear()
    assert len(read_image(str(build("flags", builds))).functions)


def test_a_file_is_parsed_again_where_it_has_changed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's clock of files has steps: a file of just now may change without a sign."""
    path = tmp_path / "program"
    shutil.copy(small, path)
    monkeypatch.setattr(elf, "_SETTLED_SECONDS", 600.0)
    assert read_image(str(path)) is not read_image(str(path))
    monkeypatch.setattr(elf, "_SETTLED_SECONDS", 0.0)
    kept = read_image(str(path))
    assert read_image(str(path)) is kept
    monkeypatch.setattr(elf, "_LARGEST_KEPT", path.stat().st_size - 1)
    assert read_image(str(path)) is not kept, "larger than what is kept in memory"
    monkeypatch.undo()
    monkeypatch.setattr(elf, "_SETTLED_SECONDS", 0.0)
    time.sleep(0.02)
    path.write_bytes(small.read_bytes()[:-1] + b"x")
    assert read_image(str(path)).sha256 == hashlib.sha256(path.read_bytes()).hexdigest() != kept.sha256
    path.unlink()
    with pytest.raises(ProgramNotRunnable, match="cannot be read"):
        read_image(str(path))


def test_whole_sections_serve_where_symbols_are_gone_too(builds: Path, tmp_path: Path) -> None:
    path = build("flags", builds, "nopie")
    image = read_image(str(bare(path, tmp_path)))
    assert len(image.functions) == 1 and not image.functions_known and covers(image, symbols(path)["main"])


def test_segments_serve_where_sections_are_gone(builds: Path, tmp_path: Path) -> None:
    path = build("flags", builds)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 40, 0)
    struct.pack_into("<HHH", data, 58, 0, 0, 0)
    (tmp_path / "sectionless").write_bytes(data)
    image, whole = read_image(str(tmp_path / "sectionless")), read_image(str(path))
    assert set(map(tuple, whole.functions.tolist())) <= set(map(tuple, image.functions.tolist()))


def test_frames_of_a_stripped_program_are_its_functions(builds: Path) -> None:
    stripped, places = read_image(str(build("bigtext", builds, "stripped"))), symbols(build("bigtext", builds))
    starts = {address for name, address in places.items() if name.startswith("big_0") or name.startswith("big_1")}
    assert len(starts) > 1000 and starts <= set(stripped.functions[:, 0].tolist())


@pytest.mark.parametrize("kind", sorted(set(BAD_FILES) - {"nointerpreter"}))
def test_bad_files_are_no_programs(kind: str, tmp_path: Path) -> None:
    path = bad_file(kind, tmp_path)
    if kind == "truncated":
        with pytest.raises(ProgramNotRunnable):
            read_image(str(path))
        return
    with pytest.raises(ProgramNotRunnable, match=str(path)):
        resolve_program([str(path)])
    if kind not in ("noexec", "folder"):
        with pytest.raises(ProgramNotRunnable, match=str(path)):
            check_runnable(path)


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    for read in (lambda: read_image(str(tmp_path / "none")), lambda: check_runnable(tmp_path / "none")):
        with pytest.raises(ProgramNotRunnable, match="cannot be read"):
            read()


def usable_or_refused(data: bytes, path: Path) -> bool:
    """Whether `data` is an image; anything but an image or ProgramNotRunnable, soon, fails the test."""
    path.write_bytes(data)
    start = time.monotonic()
    try:
        image = read_image(str(path))
    except ProgramNotRunnable as error:
        assert str(path) in str(error)
        return False
    finally:
        assert time.monotonic() - start < SECONDS_FOR_ANY_FILE
    _analyse(image)
    assert (image.functions[:, 1] > image.functions[:, 0]).all()
    assert (image.functions[1:, 0] >= image.functions[:-1, 1]).all()
    assert time.monotonic() - start < SECONDS_FOR_ANY_FILE
    return True


def test_truncated_anywhere(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    lengths = [*range(0, 1024, 13), *range(1024, len(whole), 511)]
    results = [usable_or_refused(whole[:n], tmp_path / "cut") for n in lengths]
    assert not any(results[:5]), "without headers there is no image"


NUMBERS = [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]


def interesting(data: bytes) -> list[int]:
    """Offsets of the ELF header, the program headers, the section headers and the frame table."""
    program, section = struct.unpack_from("<QQ", data, 32)
    frames = next(
        struct.unpack_from("<Q", data, at + 8)[0]
        for at in range(program, program + 56 * 16, 56)
        if struct.unpack_from("<I", data, at)[0] == 0x6474E550
    )
    return [*range(64), *range(program, program + 56 * 13), *range(section, len(data)), *range(frames, frames + 60)]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_field_of_the_headers_with_extreme_values(number: int, small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    program = struct.unpack_from("<Q", whole, 32)[0]
    fields = [("<Q", at) for at in (24, 32, 40)] + [("<H", at) for at in range(16, 64, 2) if not 24 <= at < 48]
    fields += [("<Q", at) for at in range(program + 8, program + 56 * 13, 8)]
    for form, at in fields:
        data = bytearray(whole)
        struct.pack_into(form, data, at, number & (256 ** struct.calcsize(form) - 1))
        usable_or_refused(bytes(data), tmp_path / "extreme")


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_headers(data: st.DataObject, small: Path, tmp_path: Path) -> None:
    content = bytearray(small.read_bytes())
    places = interesting(bytes(content))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.sampled_from(places))] = data.draw(st.integers(0, 255))
    usable_or_refused(bytes(content), tmp_path / "damaged")


def test_frame_entries_that_lie_are_left_out(small: Path, tmp_path: Path) -> None:
    """Each range is taken only where table and entry agree on its start."""
    whole = read_image(str(small))
    data = bytearray(small.read_bytes())
    program = struct.unpack_from("<Q", data, 32)[0]
    at = next(a for a in range(program, program + 56 * 13, 56) if struct.unpack_from("<I", data, a)[0] == 0x6474E550)
    frames, vaddr = struct.unpack_from("<QQ", data, at + 8)
    start = int(whole.functions[-1, 0])
    entry = next(a for a in range(frames + 12, len(data), 8) if struct.unpack_from("<i", data, a)[0] == start - vaddr)
    struct.pack_into("<i", data, entry, start - vaddr + 1)
    (tmp_path / "lying").write_bytes(data)
    fewer = read_image(str(tmp_path / "lying")).functions
    assert set(map(tuple, fewer.tolist())) < set(map(tuple, whole.functions.tolist()))
    assert np.issubdtype(fewer.dtype, np.int64)
