# SPDX-License-Identifier: Apache-2.0
"""Markers in real processes: the n-th execution exactly, whatever else happens at it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import build, expected_counts, run, symbols
from tracing import SECONDS, Marked, compile_small, marked, program_of, to_exit

from checkpoint.binary.elf import read_image
from checkpoint.binary.sites import find_sites
from checkpoint.errors import Diverged
from checkpoint.event import EVENT_BYTES, STAMP, STOP_AFTER, STOP_BEFORE
from checkpoint.process.tracee import What
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import REGION_EVENTS, Marker

# `ticks` is the number of the round, so that a stop can be compared with the truth. A round passes both sites.
TICKER = r"""
#include <stdint.h>
#include <stdio.h>
volatile uint64_t ticks;
volatile uint32_t one, two;
#define PLACE(name, cell) \
    __attribute__((noipa)) static void at_##name(void) \
    { \
        __asm__ volatile(".globl site_" #name "\nsite_" #name ": movl $0x51735173, " #cell "(%rip)"); \
    }
PLACE(one, one)
PLACE(two, two)
int main(void)
{
    for (uint64_t i = 1; i <= 100000; i++) {
        ticks = i;
        at_one();
        at_two();
    }
    printf("%llu\n", (unsigned long long)ticks);
    return 0;
}
"""
ROUNDS = 100_000


class Ticker:
    """The program above; addresses are of its image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.symbols = symbols(path)
        self.one = Marker(str(path), self.symbols["site_one"])
        self.two = Marker(str(path), self.symbols["site_two"])

    @contextmanager
    def started(self, wanted: dict[Marker, list[Event]]) -> Iterator[Marked]:
        with marked(program_of(self.path), wanted) as process:
            yield process

    def address(self, process: Marked, symbol: str) -> int:
        return self.symbols[symbol] + process.watch.known()[0].bias

    def ticks(self, process: Marked) -> int:
        return int.from_bytes(process.tracee.read(self.address(process, "ticks"), 8), "little")

    def text(self, process: Marked, symbol: str) -> bytes:
        return process.tracee.read(self.address(process, symbol), 10)

    def own_text(self, symbol: str) -> bytes:
        return read_image(str(self.path)).bytes_at(self.symbols[symbol], 10)


@pytest.fixture(scope="module")
def ticker(tmp_path_factory: pytest.TempPathFactory) -> Ticker:
    return Ticker(compile_small(tmp_path_factory.mktemp("ticker"), "ticker", TICKER))


def stopped(process: Marked) -> None:
    process.tracee.resume()
    assert process.tracee.wait(SECONDS).what is What.STOPPED


def test_stops_at_exactly_the_wanted_executions(ticker: Ticker) -> None:
    counts = [1, 2, 3, 777, 50_000, ROUNDS]
    with ticker.started({ticker.one: [Event(n, STOP_BEFORE) for n in counts]}) as process:
        for count in counts:
            stopped(process)
            assert (ticker.ticks(process), process.markers.executions(ticker.one)) == (count, count)
        to_exit(process.tracee, process.watch, process.markers)
        assert process.markers.executions(ticker.one) == ROUNDS
        assert process.markers.due() == [(ticker.one, n) for n in counts]


def test_stamps_come_in_order_and_only_for_what_happened(ticker: Ticker) -> None:
    ones, twos = [1, 10, 40_000, ROUNDS, ROUNDS + 1], [1, 10, 40_000, ROUNDS]
    wanted = {m: [Event(n, STAMP) for n in c] for m, c in ((ticker.one, ones), (ticker.two, twos))}
    with ticker.started(wanted) as process:
        to_exit(process.tracee, process.watch, process.markers)
        assert process.tracee.read(ticker.address(process, "one"), 4) == bytes.fromhex("73517351")
        first, second = (process.markers.stamps(m) for m in (ticker.one, ticker.two))
        assert first[-1] is None and None not in first[:-1] and None not in second
        order = [s for pair in zip(first[:-1], second, strict=True) for s in pair if s]
        assert [s.wall for s in order] == sorted(s.wall for s in order)
        assert [s.cpu for s in order] == sorted(s.cpu for s in order)
        assert order[0].wall < order[-1].wall and order[0].cpu < order[-1].cpu
        assert 0 < order[-1].cpu - order[0].cpu <= (order[-1].wall - order[0].wall) * 1.5
        assert {process.markers.executions(m) for m in (ticker.one, ticker.two)} == {ROUNDS}


def test_another_thread_stamps_the_first_ones_time(builds: Path) -> None:
    """Each helper works its one unit, of WORK_UNITS executions, while the first thread waits for it."""
    path = build("waiters", builds)
    marker = Marker(str(path), symbols(path)["site_work"])
    events = [Event(n, STAMP) for n in range(500, 103_000, 1000)]
    with marked(program_of(path, "100", "help"), {marker: events}) as process:
        to_exit(process.tracee, process.watch, process.markers)
        assert process.markers.executions(marker) == 103_000
        stamps = [stamp for stamp in process.markers.stamps(marker) if stamp]
    assert len(stamps) == len(events) and [s.cpu for s in stamps] == sorted(s.cpu for s in stamps)
    assert [i for i, s in enumerate(stamps) if math.isnan(s.kernel)] == [0, 41, 82]


def test_markers_without_events_only_count(ticker: Ticker) -> None:
    with ticker.started({ticker.one: [], ticker.two: [Event(5, STOP_BEFORE)]}) as process:
        assert process.markers.executions(ticker.one) == 0
        stopped(process)
        assert process.markers.executions(ticker.one) == 5
        assert process.markers.executions(ticker.two) == 5, "the one that is about to run is counted"
        assert process.markers.stamps(ticker.one) == []


def test_before_and_after_say_when_the_clock_is_read(ticker: Ticker) -> None:
    wanted = {ticker.one: [Event(100, STOP_BEFORE | STAMP), Event(200, STAMP | STOP_AFTER)]}
    with ticker.started(wanted) as process:
        stopped(process)
        assert process.markers.stamps(ticker.one) == [None, None]
        stopped(process)
        early, late = process.markers.stamps(ticker.one)
        assert early is not None and late is not None and early.wall < late.wall
        assert ticker.ticks(process) == 200


def test_the_events_of_a_marker_must_rise(ticker: Ticker) -> None:
    with pytest.raises(ValueError, match="must rise"), ticker.started({ticker.one: [Event(3, 2), Event(3, 1)]}):
        pass


def test_one_region_alone_and_everything_back(ticker: Ticker) -> None:
    wanted = {ticker.one: [Event(n, STAMP | STOP_AFTER) for n in (100, 5000)], ticker.two: [Event(7000, STAMP)]}
    with ticker.started(wanted) as process:
        markers = process.markers
        stopped(process)
        patched = {name: ticker.text(process, name) for name in ("site_one", "site_two")}
        records = {m: process.tracee.read(one.record, 16) for m, one in markers._installed.items()}
        with markers.only({ticker.two: [Event(150, STAMP), Event(160, STAMP)]}) as addresses:
            assert ticker.text(process, "site_one") == ticker.own_text("site_one")
            assert ticker.text(process, "site_two") == patched["site_two"] != ticker.own_text("site_two")
            assert list(addresses) == [ticker.two] and len(addresses[ticker.two]) == 2
        assert {name: ticker.text(process, name) for name in patched} == patched
        assert {m: process.tracee.read(one.record, 16) for m, one in markers._installed.items()} == records
        stopped(process)
        assert ticker.ticks(process) == 5000
        to_exit(process.tracee, process.watch, markers)
        assert [markers.executions(m) for m in wanted] == [ROUNDS, ROUNDS]
        assert None not in markers.stamps(ticker.one) + markers.stamps(ticker.two)


def test_the_region_runs_with_its_own_events(ticker: Ticker) -> None:
    with ticker.started({ticker.one: [Event(100, STOP_BEFORE), Event(120, STOP_BEFORE)], ticker.two: []}) as process:
        stopped(process)
        region = {ticker.one: [Event(130, STAMP)], ticker.two: [Event(110, STAMP), Event(140, STAMP | STOP_AFTER)]}
        with process.markers.only(region) as addresses:
            stopped(process)
            assert ticker.ticks(process) == 140, "the event at 120 is none of this region's"
            walls = [
                int.from_bytes(process.tracee.read(at + 16, 8), "little") * 10**9
                + int.from_bytes(process.tracee.read(at + 24, 8), "little")
                for at in (addresses[ticker.two][0], addresses[ticker.one][0], addresses[ticker.two][1])
            ]
            assert 0 < walls[0] <= walls[1] <= walls[2]


def test_a_region_behind_the_process_is_refused(ticker: Ticker) -> None:
    with ticker.started({ticker.one: [Event(100, STOP_BEFORE)], ticker.two: []}) as process:
        stopped(process)
        patched = {name: ticker.text(process, name) for name in ("site_one", "site_two")}
        too_many = [Event(200 + n, STAMP) for n in range(REGION_EVENTS + 1)]
        for region in ({ticker.two: [Event(99, STAMP)]}, {ticker.one: [Event(100, STAMP)]}, {ticker.one: too_many}):
            with pytest.raises(Diverged), process.markers.only(region):
                pass
            assert {name: ticker.text(process, name) for name in patched} == patched
        to_exit(process.tracee, process.watch, process.markers)
        assert process.markers.executions(ticker.two) == ROUNDS


def test_signals_inside_a_marker_lose_no_execution(builds: Path, tmp_path: Path) -> None:
    path, truth = build("signals", builds), tmp_path / "counts"
    marker = Marker(str(path), symbols(path)["site_hot"])
    events = [Event(n, STAMP) for n in range(1, 40_000_000, 20_011)]
    with marked(program_of(path, "40", str(truth)), {marker: events}) as process:
        to_exit(process.tracee, process.watch, process.markers)
        counts = expected_counts(truth.read_text())
        assert counts["site_handler"] > 50, "too few signals to prove anything"
        assert process.markers.executions(marker) == counts["site_hot"]
        stamps = process.markers.stamps(marker)
        walls = [s.wall for s in stamps if s]
        assert len(walls) == len(events) and walls == sorted(walls)
        assert process.streams.stdout.read_text() == run(path, "40").stdout


def test_markers_in_two_images_far_apart(builds: Path) -> None:
    path = build("farlib", builds)
    library = path.parent / "libfar.so"
    main_sites = find_sites(read_image(str(path)))
    loop = symbols(path)["main"]
    at = int(main_sites.offset[main_sites.offset >= loop][0])
    near, far = Marker(str(path), at), Marker(str(library), symbols(library)["site_far"])
    with marked(program_of(path, "10"), {near: [Event(1, STAMP)], far: [Event(n, STAMP) for n in (1, 10_000)]}) as p:
        to_exit(p.tracee, p.watch, p.markers)
        assert p.markers.executions(far) == 10_000
        first, last = p.markers.stamps(far)
        (begun,) = p.markers.stamps(near)
        assert first and last and begun and begun.wall < first.wall < last.wall


@pytest.mark.parametrize("elsewhere", [False, True])
def test_markers_in_a_library_that_comes_and_goes(elsewhere: bool, builds: Path) -> None:
    """Opened, closed and opened again, where it was or at another address: one count through both."""
    path = build("dlopen", builds)
    plugin = path.parent / "plugin.so"
    marker = Marker(str(plugin), symbols(plugin)["site_plugin"])
    counts = [1, 10_000, 10_001, 15_000, 20_000, 20_001]
    with marked(program_of(path, "10"), {marker: [Event(n, STAMP) for n in counts]}) as process:
        markers, tracee = process.markers, process.tracee
        assert process.watch.armed and markers.missing() == [marker]
        assert markers.not_mapped([marker]) == [str(plugin)]
        with pytest.raises(Diverged, match="not mapped"), markers.only({marker: [Event(5, STAMP)]}):
            pass
        assert markers.stamps(marker) == [None] * len(counts)
        biases: list[int] = []
        opened, closed, was_there, places = 0, 0, False, 2 if elsewhere else 1
        tracee.resume()
        while tracee.wait(SECONDS).what is What.BREAKPOINT:
            process.watch.step_over()
            markers.install_new(process.watch)
            there = [i.bias for i in process.watch.known() if i.image.path == str(plugin)]
            biases += [bias for bias in there if bias not in biases]
            opened += bool(there) and not was_there
            closed += was_there and not there
            was_there = bool(there)
            if opened == closed == 1:
                assert markers.executions(marker) == 10_000
                with markers.only({}):  # nothing is written where the library was
                    pass
                with pytest.raises(Diverged, match="not mapped"), markers.only({marker: [Event(15_000, STAMP)]}):
                    pass
                if elsewhere:
                    tracee.map_memory(biases[0], 4096, executable=False)
                    elsewhere = False
            tracee.resume()
        assert (opened, closed, len(biases)) == (2, 2, places)
        assert markers.executions(marker) == 20_000
        stamps = markers.stamps(marker)
        assert stamps[-1] is None
        walls = [s.wall for s in stamps if s]
        assert len(walls) == 5 and walls == sorted(walls) and walls[2] > walls[1] + 0.005
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED
        assert process.streams.stdout.read_text() == run(path, "10").stdout


def test_the_loader_is_watched_only_where_a_marker_needs_it(builds: Path) -> None:
    path = build("dlopen", builds)
    own = Marker(str(path), symbols(path)["site_work"])
    with marked(program_of(path, "10"), {own: []}) as process:
        assert not process.watch.armed


def test_a_marker_that_is_no_site_any_more_is_refused(ticker: Ticker) -> None:
    with pytest.raises(Diverged, match="changed since"), ticker.started({Marker(str(ticker.path), 0x1001): []}):
        pass


def test_event_addresses_are_the_events(ticker: Ticker) -> None:
    with ticker.started({ticker.one: [Event(5, STOP_BEFORE), Event(9, STAMP)]}) as process:
        five, nine = (process.markers.event_address(ticker.one, n) for n in (5, 9))
        assert nine - five == EVENT_BYTES
        assert process.tracee.read(five, 8) == (4).to_bytes(8, "little"), "four executions from the 5th to the 9th"
        stopped(process)
        assert process.markers.due() == [(ticker.one, 5)]
