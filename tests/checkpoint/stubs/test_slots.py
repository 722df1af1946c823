# SPDX-License-Identifier: Apache-2.0
"""Counters of many images in the slots of a team: all in reach, none in another's place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.linux import PAGE_SIZE
from checkpoint.process.loader import LoadedImage, LoadWatch
from checkpoint.process.maps import find_gap, in_reach
from checkpoint.process.team import SLOT_BYTES
from checkpoint.process.tracee import Tracee, What
from checkpoint.stubs.counters import SiteCounters
from checkpoint.stubs.slots import StubRoom

MANY = 24
"""Images: more than there is room for within 2 GB, if each took a block of slots for itself."""

ROUNDS = 500

LIBRARY = """
__attribute__((noipa)) static unsigned turn(unsigned x) { return x * 5 + 1; }
unsigned part_%d(unsigned x) { for (int i = 0; i < %d; i++) x = turn(x); return x; }
"""

PROGRAM = """
#include <pthread.h>
#include <stddef.h>
%s
static void *work(void *start)
{
    unsigned *x = start;
    %s
    return NULL;
}
int main(void)
{
    unsigned one = 1, other = 1;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, &other))
        return 1;
    work(&one);
    return pthread_join(thread, NULL) || one != other;
}
"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose two threads work in MANY libraries, each another number of times."""
    folder = tmp_path_factory.mktemp("crowded")
    libraries = []
    for number in range(MANY):
        made = compile_small(folder, f"libpart{number}.so", LIBRARY % (number, ROUNDS + number), "-fPIC", "-shared")
        libraries.append(str(made))
    declared = "\n".join(f"unsigned part_{number}(unsigned);" for number in range(MANY))
    called = "\n    ".join(f"*x = part_{number}(*x);" for number in range(MANY))
    return compile_small(folder, "crowded", PROGRAM % (declared, called), "-pthread", "-Wl,--no-as-needed", *libraries)


@contextmanager
def started(path: Path, threads: int = 2) -> Iterator[tuple[Tracee, list[LoadedImage]]]:
    """At its entry point, with all of its images."""
    with streams_of() as streams, Tracee.start(replace(program_of(path), threads=threads), streams) as tracee:
        yield tracee, LoadWatch(tracee).new_images()


def test_both_threads_count_in_every_library(crowded: Path) -> None:
    with started(crowded) as (tracee, images):
        counters = SiteCounters(tracee)
        assert all(counters.install(loaded) for loaded in images if "libpart" in loaded.image.path)
        tracee.resume()
        while (occurrence := tracee.wait(SECONDS)).what is not What.EXITING:
            assert occurrence.what is What.PAUSED
            tracee.resume()
        whole, first = (counts.of_all(counters.columns) for counts in counters.read_both())
    for number in range(MANY):
        image = next(one for one in counters.images if one.path.endswith(f"/libpart{number}.so"))
        mine = slice(image.first, image.first + len(image.sites))
        assert (whole[mine] == 2 * first[mine]).all() and first[mine].max() in (ROUNDS + number, ROUNDS + number + 1)


def test_counters_of_all_slots_are_apart(crowded: Path) -> None:
    """Of uneven sizes, some of which a slot that is begun has no room for."""
    sizes = [8, PAGE_SIZE + 8, SLOT_BYTES, SLOT_BYTES // 2 + 8, SLOT_BYTES // 2 + 8, 3 * PAGE_SIZE, SLOT_BYTES // 4] * 2
    with started(crowded) as (tracee, (loaded, *_)):
        room, taken = StubRoom(tracee), []
        assert tracee.team is not None
        for size in sizes:
            code, counters = room.take(loaded, PAGE_SIZE, size)
            assert in_reach(code, PAGE_SIZE, counters, size)
            taken.append((code, code + PAGE_SIZE))
            taken += [(at, at + size) for at in range(counters, counters + tracee.team.most * SLOT_BYTES, SLOT_BYTES)]
            tracee.write(counters + size - 8, bytes(8))
        with pytest.raises(LookupError, match="more than a thread's slot has"):
            room.take(loaded, PAGE_SIZE, SLOT_BYTES + 1)
    taken.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))


def test_counters_out_of_reach_are_not_taken(crowded: Path) -> None:
    """Of an image that is mapped far from the first one's slots."""
    with started(crowded) as (tracee, images):
        room = StubRoom(tracee)
        far, near = max(images, key=lambda one: one.low), min(images, key=lambda one: one.low)
        assert far.low - near.high > 1 << 32
        first, again = room.take(far, PAGE_SIZE, 8)[1], room.take(far, PAGE_SIZE, 8)[1]
        other = room.take(near, PAGE_SIZE, 8)
        assert again - first == PAGE_SIZE and in_reach(other[0], PAGE_SIZE, other[1], 8)


def test_without_a_team_counters_follow_the_stubs(crowded: Path) -> None:
    with started(crowded, threads=1) as (tracee, (loaded, *_)):
        expected = find_gap(tracee.mappings(), loaded.low, loaded.high, 4 * PAGE_SIZE)
        assert StubRoom(tracee).take(loaded, PAGE_SIZE, 2 * PAGE_SIZE) == (expected, expected + PAGE_SIZE)
