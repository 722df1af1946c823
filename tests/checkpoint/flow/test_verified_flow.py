# SPDX-License-Identifier: Apache-2.0
"""Verified flow: what a restored region executes is counted to the last block, and what differs is found and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from direct_runs import flat_job
from programs import build
from regions import captured_regions

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flow.classes import OF_FLOATS, NumberClasses, classes_of, look
from checkpoint.flow.comparing import compare
from checkpoint.flow.flow import Flow, Numbers, Plan, Point
from checkpoint.flow.points import POINTS, choose_points
from checkpoint.flow.watching import FlowWatcher

STEPS = 400
SIDE, TURNS = 128, 20
CELLS = SIDE * SIDE
ARRAYS, COLUMNS = (0x200000000, 0x210000000), 0x220000000
"""tests/programs/arrays.c."""


def watcher_of(builds: Path, folder: Path, kind: str) -> FlowWatcher:
    """The first region of `arrays KIND`."""
    (job,) = captured_regions(build("arrays", builds), kind, folder=folder / "captured", direct=True)
    flat = flat_job(job, folder)
    pages = read_state(job.images).pages_image
    return FlowWatcher(job, flat, pages, restorer(), scratch=folder, cpu=None)


def planned(flow: Flow) -> Plan:
    return Plan(choose_points(flow), STEPS)


@pytest.fixture(scope="module")
def plate(builds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FlowWatcher, Flow]:
    watcher = watcher_of(builds, tmp_path_factory.mktemp("plate"), "plate")
    return watcher, watcher.watch()


def test_two_runs_execute_the_same_at_the_same_addresses(plate: tuple[FlowWatcher, Flow]) -> None:
    watcher, once = plate
    flow, again = watcher.watch(planned(once)), watcher.watch(planned(once))
    assert flow.counts == once.counts
    found = compare(again, flow)
    assert found.none and found.sentence() == ""
    assert found.points == POINTS and found.steps > POINTS * STEPS * 0.9
    assert [p.executions for p in flow.passed] == sorted(p.executions for p in flow.passed)


def test_counts_are_those_of_the_source(plate: tuple[FlowWatcher, Flow]) -> None:
    """The inner loop's block runs once for each inner cell, or for two of them where the compiler takes two at once."""
    _, flow = plate
    cells = TURNS * (SIDE - 2) * (SIDE - 2)
    assert max(flow.counts.values()) in (cells, cells // 2)


def test_a_block_that_runs_once_more_is_found(plate: tuple[FlowWatcher, Flow]) -> None:
    _, flow = plate
    place = next(iter(flow.counts))
    other = replace(flow, counts={**flow.counts, place: flow.counts[place] + 1})
    found = compare(other, flow)
    assert not found.none and list(found.blocks) == [place]
    assert found.sentence() == "1 blocks are not executed as often"


def test_all_column_numbers_set_to_one_are_found_by_addresses_alone(builds: Path, tmp_path: Path) -> None:
    """Equal counts are no proof: every block runs as often, but all gathers hit one cache line."""
    watcher = watcher_of(builds, tmp_path, "sparse")
    once = watcher.watch()
    plan = planned(once)
    flow = watcher.watch(plan)
    ones = memoryview(np.ones(CELLS, dtype=np.int32)).cast("B")
    found = compare(watcher.watch(replace(plan, contents=lambda: iter([(COLUMNS, ones)]))), flow)
    assert not found.blocks and not found.call
    assert found.addresses > 0
    assert "steps use other addresses" in found.sentence()


def test_numbers_that_turn_into_nan_are_found_by_their_class_alone(builds: Path, tmp_path: Path) -> None:
    """Equal counts and addresses are no proof either: NaN may be slower than numbers."""
    watcher = watcher_of(builds, tmp_path, "roots")
    plan = replace(planned(watcher.watch()), numbers=tuple(Numbers(start, 8 * CELLS) for start in ARRAYS))
    flow = watcher.watch(plan)

    def filled(value: float) -> Plan:
        numbers = memoryview(np.full(CELLS, value)).cast("B")
        return replace(plan, contents=lambda: iter([(start, numbers) for start in ARRAYS]))

    assert compare(watcher.watch(filled(1.5)), flow).none
    found = compare(watcher.watch(filled(2.0**-7)), flow)
    assert not found.blocks and not found.addresses
    assert "numbers are NaN" in found.numbers and found.sentence() == found.numbers


def test_the_plan_says_which_memory_holds_floats(builds: Path, tmp_path: Path) -> None:
    """Sums of doubles may look like pairs of floats, some of them NaN."""
    watcher = watcher_of(builds, tmp_path, "sparse")
    sums = np.array([0x401AF1D37FB9EF72, 0x3FF45D183F89454F] * (CELLS // 2), dtype=np.uint64)
    written = Plan(contents=lambda: iter([(ARRAYS[0], memoryview(sums).cast("B"))]))
    nan = {}
    for floats in (None, True, False):
        found = watcher.watch(replace(written, numbers=(Numbers(ARRAYS[0], 8 * CELLS, floats),))).classes
        assert found is not None and found.words == CELLS
        nan[floats] = found.nan
    # The region replaces some of them.
    assert nan[False] == 0 and min(nan[None], nan[True]) > CELLS // 4


def test_system_calls_are_compared_in_order(builds: Path, tmp_path: Path) -> None:
    watcher = watcher_of(builds, tmp_path, "writes")
    flow = watcher.watch()
    assert flow.calls.made == 1 and flow.calls.complete
    calls = flow.calls.first.copy()
    calls[0, 2] += 1
    found = compare(replace(flow, calls=replace(flow.calls, first=calls)), flow)
    assert found.call == "system call 1 is write with other arguments"
    none = replace(flow.calls, first=calls[:0], made=0)
    assert compare(replace(flow, calls=none), flow).call == "0 system calls instead of 1"


def test_a_region_that_ends_before_its_end_is_refused(builds: Path, tmp_path: Path) -> None:
    """A program that checks its own data ends itself when they are others."""
    watcher = watcher_of(builds, tmp_path, "checksum")
    ones = memoryview(np.ones(CELLS)).cast("B")
    with pytest.raises(PhaseFailed, match=r"ended before its region did \(status 3\) while its flow was watched"):
        watcher.watch(Plan(contents=lambda: iter([(ARRAYS[0], ones)])))


def test_classes_of_numbers() -> None:
    values = np.array([0.0, 1.0, np.nan, np.inf, -np.inf, 1e-308, -0.0])
    assert classes_of(values.view(np.uint64)) == NumberClasses(7, 1, 2, 1, 2)
    # Small integers look like denormal numbers, and are none.
    assert classes_of(np.arange(1, 9, dtype=np.uint64)).denormal == 0
    few = NumberClasses(10_000, nan=5)
    assert few.differing(NumberClasses(10_000)) == ""
    assert few.differing(NumberClasses(10_000, infinite=50)) == (
        "0 of 10000 numbers are infinity, 50 with the program's own data"
    )


@pytest.mark.parametrize("half", [0, 1])
def test_classes_of_floats_are_seen_in_both_halves_of_words(half: int) -> None:
    floats = np.linspace(0.5, 1.5, 4096, dtype=np.float32)
    floats[half : 200 * 2 : 2] = np.nan
    floats[400 + half : 500 : 2] = -np.inf
    floats[1024 + half : 1024 + 40 : 2] = 1e-39
    assert classes_of(floats.view(np.uint64)) == NumberClasses(2048, 200, 50, 20, 0)


def test_lower_halves_of_doubles_are_no_numbers() -> None:
    """One of 256 looks like a float that is NaN."""
    doubles = 1.0 + np.random.default_rng(1).random(512 * 64)
    assert classes_of(doubles.view(np.uint64)) == NumberClasses(512 * 64)
    # Nor are pointers beside doubles whose lower halves all look like floats.
    pointers = np.full(512, 0x3FF000003F800000, dtype=np.uint64)
    pointers[::8] = 0x200012340
    assert classes_of(pointers) == NumberClasses(512)
    # Nor are small numbers beside floats denormal.
    pairs = np.full((512, 2), np.float32(1.5).view(np.uint32))
    pairs[:, 0] = np.arange(512)
    assert classes_of(pairs.view(np.uint64).reshape(-1)) == NumberClasses(512)


@pytest.mark.parametrize("low", [0xFF8514F5, 0x7F800000, 0x00400000])
def test_one_double_again_and_again_is_no_page_of_floats(low: int) -> None:
    """As in a plate whose rows are alike: each lower half is the same float, which by chance is a special one."""
    page = np.full(512, 0x3FCAEE2B << 32 | low, dtype=np.uint64)
    page[:40] += np.arange(40, dtype=np.uint64)
    assert classes_of(page) == NumberClasses(512)


def test_doubles_with_few_digits_are_no_floats() -> None:
    """Their lower halves are 2, 0 and both with a sign: of the sums of others some are NaN."""
    doubles = 1.0 + np.arange(512) / 2**22
    assert look(doubles.view(np.uint64).reshape(1, -1))[0, OF_FLOATS] == 0
    floats = np.linspace(0.5, 1.5, 1024, dtype=np.float32)
    floats[::7] = 0.0
    assert look(floats.view(np.uint64).reshape(1, -1))[0, OF_FLOATS] == 1


def test_what_a_page_holds_is_told_where_others_tell() -> None:
    """Sums of doubles whose lower halves look like floats look like those, some of them NaN."""
    sums = np.array([0x401AF1D37FB9EF72, 0x3FF45D183F89454F] * 256, dtype=np.uint64)
    assert [classes_of(sums, floats).nan for floats in (None, True, False)] == [256, 256, 0]
    alone = np.full(512, 0x3FCAEE2BFF8514F5, dtype=np.uint64)
    assert classes_of(alone, True).nan == 512


def test_calls_made_inside_a_window_are_seen(builds: Path, tmp_path: Path) -> None:
    """A step does not stop at a system call: with points all over the region, one of them steps over it."""
    watcher = watcher_of(builds, tmp_path, "writes")
    once = watcher.watch()
    last = max(once.counts, key=lambda place: once.counts[place])
    point = Point(last, once.counts[last])
    flow = watcher.watch(Plan((point,), 5000))
    assert flow.calls.made == once.calls.made == 1
    assert not compare(Flow(flow.counts, flow.calls), once).call
