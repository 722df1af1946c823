# SPDX-License-Identifier: Apache-2.0
"""The touched set is exactly what a region touches: against programs that touch known pages, and against Valgrind."""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import build, symbols
from regions import captured_regions

from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import find_criu
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import PageDropped, RestoreJob, time_phase
from checkpoint.restore.lazy_agent import PageServer
from checkpoint.state.process_state import PAGE_LAZY, ProcessState, ThreadState, VmaStatus
from probe.formats.arrays import BoolArray
from reducer.reduction import reduce_checkpoint
from reducer.touched_set import TouchedSet, check_reduced, pages_to_keep, record_touched_set, with_positions

SCENARIOS = [
    "plain", "border", "kernel", "stack", "zeros", "data", "discard", "unmap", "move", "resize", "heap", "holes",
    "huge", "locked", "wander",
]  # fmt: skip
"""Of tests/programs/touches.c, in its order."""

R, W = False, True


@dataclass(frozen=True)
class Scenario:
    """One region of the program, and the addresses of its areas by name."""

    job: RestoreJob
    images: ProcessState
    areas: dict[str, int]

    def in_image(self, area: str) -> set[int]:
        """Pages of the area that the checkpoint holds, counted from its start."""
        base = self.areas[area] & -PAGE_SIZE
        pages = {run.vaddr + k * PAGE_SIZE for run in self.images.page_runs for k in range(run.pages)}
        return {(page - base) // PAGE_SIZE for page in pages if 0 <= page - base < AREA_BYTES}


AREA_BYTES = 1024 * PAGE_SIZE
"""The longest area; no two are nearer to each other, except on the stack and in the program."""


@pytest.fixture(scope="module")
def scenarios(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scenario]:
    folder = tmp_path_factory.mktemp("touches")
    jobs = captured_regions(build("touches", builds, "nopie"), folder=folder, regions=len(SCENARIOS))
    areas: dict[str, dict[str, int]] = {}
    for name, area, address in re.findall(r"^at (\w+) (\w+) (\w+)$", (folder / "stdout").read_text(), re.MULTILINE):
        areas.setdefault(name, {})[area] = int(address, 16)
    assert list(areas) == SCENARIOS
    return {
        name: Scenario(job, read_checkpoint(job.images), areas[name]) for name, job in zip(SCENARIOS, jobs, strict=True)
    }


@pytest.fixture(scope="module")
def touched(scenarios: dict[str, Scenario], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TouchedSet]:
    """touched(NAME): the touched set of a scenario, recorded once."""
    known: dict[str, TouchedSet] = {}

    def of(name: str) -> TouchedSet:
        if name not in known:
            one = scenarios[name]
            scratch = tmp_path_factory.mktemp("scratch")
            known[name] = record_touched_set(one.job, one.images, find_criu(), scratch=scratch, region_seconds=0.0)
        return known[name]

    return of


def within(found: TouchedSet, base: int, pages: int = AREA_BYTES // PAGE_SIZE) -> list[tuple[int, bool]]:
    """(page, first touch was a write) inside an area, in order."""
    start = base & -PAGE_SIZE
    numbers = [((int(a) - start) // PAGE_SIZE, bool(w)) for a, w in zip(found.address, found.written, strict=True)]
    return [(number, write) for number, write in numbers if 0 <= number < pages]


IN_ORDER: dict[tuple[str, str], list[tuple[int, bool]]] = {
    ("plain", "area"): [(3, R), (1, R), (5, W), (7, R)],
    ("zeros", "area"): [(5, R)],
    ("discard", "area"): [(2, R), (3, W), (12, R), (35, R)],
    ("unmap", "area"): [(2, R), (12, R), (34, R)],
    ("move", "area"): [(2, R), (5, W), (6, R)],
    ("move", "grown"): [(1, R)],
    ("move", "kept"): [(1, R)],
    ("heap", "heap"): [(3, R), (27, R)],
    ("holes", "holes"): [(0, R), (3, R), (30, R)],
    ("locked", "locked"): [],
}


@pytest.mark.parametrize(("name", "area"), IN_ORDER)
def test_exactly_these_pages_in_this_order(
    name: str, area: str, scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet]
) -> None:
    assert within(touched(name), scenarios[name].areas[area]) == IN_ORDER[name, area]


BOTH = {
    ("border", "area"): {
        10: R, 11: R, 20: W, 21: W, 30: R, 31: R, 33: W, 34: W, 36: R, 37: R, 39: W, 40: W, 50: R, 51: R, 60: W, 61: W,
        70: R, 73: R, 76: W, 77: W, 80: R, 81: R,
    },
    ("kernel", "area"): {
        50: W, 51: W, 52: W, 60: R, 61: R, 62: W, 63: W, 64: R, 65: R, 66: R, 67: R, 70: R, 74: R, 75: R,
    },
    ("huge", "huge"): {5: R, 511: R, 512: R, 700: W},
}  # fmt: skip
"""Where the processor or the kernel may choose which page of two comes first."""


@pytest.mark.parametrize(("name", "area"), BOTH)
def test_both_pages_of_an_access_across_a_border(
    name: str, area: str, scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet]
) -> None:
    found = within(touched(name), scenarios[name].areas[area])
    assert dict(found) == BOTH[name, area] and len(found) == len(BOTH[name, area])
    # What no one instruction or system call touches together still comes in order.
    assert [p // 10 for p, _ in found if p // 10 != 6] == sorted(p // 10 for p, _ in found if p // 10 != 6)


def test_the_stack_as_deep_as_it_went(scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet]) -> None:
    one = scenarios["stack"]
    low, lowest = (one.areas[name] // PAGE_SIZE for name in ("deep", "deepest"))
    top = one.images.registers["sp"] // PAGE_SIZE
    found = {int(a) // PAGE_SIZE for a in touched("stack").address}
    assert set(range(low, top + 1)) <= found
    # The frame below the last one, and no more of the 40 pages that are there.
    assert lowest < low - 30 and found & set(range(lowest, low - 1)) == set()


def test_pages_never_used_before_need_not_be_kept(
    scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet]
) -> None:
    blank = scenarios["zeros"].in_image("blank")
    assert blank & {2, 9} == set()
    assert [p for p, _ in within(touched("zeros"), scenarios["zeros"].areas["blank"], 32)] == []
    assert scenarios["holes"].in_image("holes") >= set(range(0, 96, 3))


def test_a_resized_block(scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet]) -> None:
    found = within(touched("resize"), scenarios["resize"].areas["block"], 256)
    assert found == [(0, R), (100, R)]


@pytest.mark.parametrize("name", ["data", "locked"])
def test_what_is_not_restored_lazily_stays(
    name: str, scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet]
) -> None:
    one = scenarios[name]
    area, expected = {"data": ("initialised", {1, 3}), "locked": ("locked", set(range(8)))}[name]
    pages = kept_pages(one.images, pages_to_keep(one.images, touched(name)))
    base = one.areas[area] & -PAGE_SIZE
    assert expected <= {(page - base) // PAGE_SIZE for page in pages}
    assert not {page for page, _ in within(touched(name), base, 8)} & expected


def kept_pages(images: ProcessState, keep: BoolArray) -> set[int]:
    """Addresses of the pages flagged in `keep`."""
    addresses = [run.vaddr + k * PAGE_SIZE for run in images.page_runs for k in range(run.pages)]
    return {address for address, flag in zip(addresses, keep, strict=True) if flag}


def test_the_margin_holds_what_comes_right_behind_the_end(scenarios: dict[str, Scenario], tmp_path: Path) -> None:
    one = scenarios["plain"]
    found = record_touched_set(one.job, one.images, find_criu(), scratch=tmp_path, region_seconds=3.0)
    assert within(found, one.areas["area"])[:5] == [*IN_ORDER["plain", "area"], (40, R)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_region_runs_with_its_touched_pages_alone(
    name: str, scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet], tmp_path: Path
) -> None:
    one, criu = scenarios[name], find_criu()
    reduced = reduce_checkpoint(one.images, pages_to_keep(one.images, touched(name)), tmp_path / "reduced", "drop")
    assert reduced.dropped_pages > 40
    job = dataclasses.replace(one.job, images=reduced.folder)
    check_reduced(job, read_checkpoint(reduced.folder), reduced.dropped, criu, scratch=tmp_path)
    # The program compares its memory with what should be there, or dies.
    assert len(time_phase(job, criu, repeats=1, scratch=tmp_path)) == 1


LACKING = [
    ("border", "area", 11), ("border", "area", 34), ("border", "area", 40), ("kernel", "area", 65),
    ("kernel", "area", 63), ("stack", "deep", 3), ("discard", "area", 35), ("move", "area", 6), ("move", "kept", 1),
    ("resize", "block", 100), ("heap", "heap", 27), ("huge", "huge", 512),
]  # fmt: skip


@pytest.mark.parametrize(("name", "area", "page"), LACKING)
def test_a_page_that_is_lacking_is_named(
    name: str,
    area: str,
    page: int,
    scenarios: dict[str, Scenario],
    touched: Callable[[str], TouchedSet],
    tmp_path: Path,
) -> None:
    one = scenarios[name]
    missing = (one.areas[area] & -PAGE_SIZE) + page * PAGE_SIZE
    keep = pages_to_keep(one.images, touched(name))
    keep[position_of(one.images, missing)] = False
    broken = reduce_checkpoint(one.images, keep, tmp_path / "broken", "drop")
    job = dataclasses.replace(one.job, images=broken.folder)
    with pytest.raises(PageDropped, match=rf"phase {job.phase}: .*{missing:#x}") as raised:
        check_reduced(job, read_checkpoint(broken.folder), broken.dropped, find_criu(), scratch=tmp_path)
    assert raised.value.address == missing


@pytest.mark.parametrize("page", [5, 40])
def test_a_zeroed_page_between_kept_ones_is_named(page: int, scenarios: dict[str, Scenario], tmp_path: Path) -> None:
    one = scenarios["plain"]
    missing = (one.areas["area"] & -PAGE_SIZE) + page * PAGE_SIZE
    keep = np.ones(one.images.pages, dtype=bool)
    keep[position_of(one.images, missing)] = False
    zeroed = reduce_checkpoint(one.images, keep, tmp_path / "zeroed", "zero")
    job = dataclasses.replace(one.job, images=zeroed.folder)
    images = read_checkpoint(zeroed.folder)
    if page in [number for number, _ in IN_ORDER["plain", "area"]]:
        with pytest.raises(PageDropped, match=rf"{missing:#x}"):
            check_reduced(job, images, zeroed.dropped, find_criu(), scratch=tmp_path)
    else:
        check_reduced(job, images, zeroed.dropped, find_criu(), scratch=tmp_path)


def position_of(images: ProcessState, address: int) -> int:
    """Where a page lies in the pages image."""
    return next(
        first + (address - run.vaddr) // PAGE_SIZE
        for run, first in with_positions(images.page_runs)
        if run.vaddr <= address < run.end
    )


LACKEY_ACCESS = re.compile(r"^(?:I | S| L| M) +([0-9a-f]+),(\d+)$")


def pages_seen_by_valgrind(program: Path, scenario: str, log: Path) -> set[int]:
    """Pages (addresses) of all loads and stores between the two labels of the program."""
    command = ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={log}", str(program), scenario]
    subprocess.run(command, check=True, capture_output=True)
    lines = log.read_text().splitlines()
    label = {name: f"I  {symbols(program)[name]:08x}," for name in ("site_start", "site_end")}
    start, end = (next(i for i, line in enumerate(lines) if line.startswith(label[name])) for name in label)
    pages = set()
    for line in lines[start:end]:
        found = LACKEY_ACCESS.match(line)
        if found and not line.startswith("I"):
            first, size = int(found[1], 16), int(found[2])
            pages |= {page & -PAGE_SIZE for page in (first, first + size - 1)}
    return pages


@pytest.mark.parametrize("name", ["wander", "border"])
def test_valgrind_sees_no_page_that_is_missing(
    name: str, scenarios: dict[str, Scenario], touched: Callable[[str], TouchedSet], builds: Path, tmp_path: Path
) -> None:
    one = scenarios[name]
    seen = pages_seen_by_valgrind(build("touches", builds, "nopie"), name, tmp_path / "log")
    # The stack lies elsewhere under Valgrind, and it sees no accesses by the kernel; the area is at its own address.
    start = one.areas["area"]
    in_area = {(page - start) // PAGE_SIZE for page in seen if 0 <= page - start < 96 * PAGE_SIZE}
    assert in_area == {page for page, _ in within(touched(name), start, 96)}
    assert len(in_area) > 20
    # Of the program's own variables, what the checkpoint holds.
    kept = kept_pages(one.images, pages_to_keep(one.images, touched(name)))
    held = {run.vaddr + k * PAGE_SIZE for run in one.images.page_runs for k in range(run.pages)}
    own = {page for page in seen if page < 0x1000000}
    assert own and own & held <= kept


EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 15), st.integers(1, 8), st.integers(0, 15)), min_size=1, max_size=12
)


@given(EVENTS)
def test_moved_and_removed_pages_are_followed_to_where_they_came_from(
    events: list[tuple[bool, int, int, int]],
) -> None:
    server = PageServer.__new__(PageServer)
    server._moved = []
    truth = {page: page for page in range(32)}
    for is_move, start, count, target in events:
        source = range(start, start + count)
        goal = range(target, target + count)
        if is_move and not set(source) & set(goal):
            message = struct.pack("<B7xQQQ", 0x14, start * PAGE_SIZE, target * PAGE_SIZE, count * PAGE_SIZE)
            values = [truth[page] for page in source]
            truth |= dict.fromkeys(source, -1)
            truth |= dict(zip(goal, values, strict=True))
        else:
            message = struct.pack("<B7xQQ", 0x15, start * PAGE_SIZE, (start + count) * PAGE_SIZE)
            truth |= dict.fromkeys(source, -1)
        server._take_event(-1, message.ljust(32, b"\0"))
    for page, original in truth.items():
        found = server._original(page * PAGE_SIZE)
        assert found == (original * PAGE_SIZE if original >= 0 else -1)


def test_discarding_one_range_over_and_over_is_remembered_once() -> None:
    server = PageServer.__new__(PageServer)
    server._moved = []
    for _ in range(1000):
        for start in (0, 1 << 20):
            server._take_event(-1, struct.pack("<B7xQQ", 0x15, start, start + PAGE_SIZE).ljust(32, b"\0"))
    assert len(server._moved) == 2


@pytest.mark.parametrize(("offset", "pages"), [(64, 1), (PAGE_SIZE - 16, 2)])
def test_the_kernel_may_write_its_restartable_sequence_area(
    offset: int, pages: int, scenarios: dict[str, Scenario]
) -> None:
    one = scenarios["plain"]
    address = one.areas["area"] + 60 * PAGE_SIZE + offset
    nothing = TouchedSet(np.array([], np.uint64), np.array([], bool))
    before = kept_pages(one.images, pages_to_keep(one.images, nothing))
    thread = ThreadState(rseq=address, rseq_size=32)
    after = kept_pages(one.images, pages_to_keep(dataclasses.replace(one.images, thread=thread), nothing))
    expected = {one.areas["area"] + (60 + k) * PAGE_SIZE for k in range(pages)}
    assert after - before == expected


def test_the_stack_top_and_the_threads_own_page_stay(scenarios: dict[str, Scenario]) -> None:
    images = scenarios["plain"].images
    kept = kept_pages(images, pages_to_keep(images, TouchedSet(np.array([], np.uint64), np.array([], bool))))
    wanted = {images.registers["sp"], images.registers["sp"] - 128, images.registers["fs_base"]}
    assert {address & -PAGE_SIZE for address in wanted} <= kept
    fixed_runs = [run for run in images.page_runs if not run.flags & PAGE_LAZY]
    fixed = {run.vaddr + k * PAGE_SIZE for run in fixed_runs for k in range(run.pages)}
    assert fixed and fixed <= kept
    vdso = next(vma for vma in images.vmas if vma.status & VmaStatus.VDSO)
    assert set(range(vdso.start, vdso.end, PAGE_SIZE)) <= fixed
