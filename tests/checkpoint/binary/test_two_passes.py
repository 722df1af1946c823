# SPDX-License-Identifier: Apache-2.0
"""Large images are decoded in several processes: with the same result, however these end, and none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from checkpoint.binary import sites, two_passes
from checkpoint.binary.elf import read_image
from checkpoint.binary.sites import SiteTable

PARTS = [[1, 2], [3], [4, 5, 6]]
HERE = frozenset(os.sched_getaffinity(0))


def first(part: list[int]) -> tuple[int, int]:
    return os.getpid(), sum(part)


def second(made_by: int, total: int) -> tuple[bool, int, int]:
    """Whether the same process has done both passes, and what it knows."""
    return made_by == os.getpid(), total, len(os.sched_getaffinity(0))


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_parts_keep_their_state_and_know_what_all_told() -> None:
    one = {min(HERE)}
    assert two_passes.two_passes(PARTS, first, sum, second, one) == [(True, 21, 1)] * 3
    assert children() == []


def die(part: list[int]) -> tuple[int, int]:
    if part == [3]:
        os.kill(os.getpid(), signal.SIGKILL)
    return first(part)


def die_later(made_by: int, total: int) -> tuple[bool, int, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return second(made_by, total)


def wrong(part: list[int]) -> tuple[int, int]:
    raise ValueError(part)


@pytest.mark.parametrize(("one", "two"), [(die, second), (first, die_later), (wrong, second)])
def test_a_process_that_fails_leaves_nothing(
    one: Callable[[list[int]], tuple[int, int]],
    two: Callable[[int, int], tuple[bool, int, int]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert two_passes.two_passes(PARTS, one, sum, two, HERE) is None
    assert children() == []
    assert capfd.readouterr() == ("", "")


def test_no_more_processes_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, made = os.fork, []

    def twice() -> int:
        made.append(1)
        if len(made) > 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", twice)
    assert two_passes.two_passes(PARTS, first, sum, second, HERE) is None
    assert len(made) == 3 and children() == []


def test_all_are_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that ends this process leaves it a moment to clean up."""

    def long(part: list[int]) -> tuple[int, int]:
        time.sleep(0 if part == [1, 2] else 60)
        return first(part)

    def interrupted(_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(two_passes, "_received", interrupted)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        two_passes.two_passes([[1, 2], *([[3]] * 7)], long, sum, second, HERE)
    assert time.monotonic() - begun < 5 and children() == []


def test_a_process_hears_no_signal_that_ends_its_parent() -> None:
    """Ctrl-C goes to all of the terminal's processes."""

    def signalled(part: list[int]) -> tuple[int, int]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        return first(part)

    assert two_passes.two_passes(PARTS, signalled, sum, second, HERE) == [(True, 21, len(HERE))] * 3
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_process_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_passes, "SECONDS", 0.3)

    def hang(part: list[int]) -> tuple[int, int]:
        time.sleep(60 if part == [3] else 0)
        return first(part)

    begun = time.monotonic()
    assert two_passes.two_passes(PARTS, hang, sum, second, HERE) is None
    assert time.monotonic() - begun < 20 and children() == []


KILLED = """
import os, signal, sys, time
from checkpoint.binary.two_passes import two_passes
def first(part):
    os.write(1, b"%d " % os.getpid())
    time.sleep(0.5)
    return part, part
def merged(told):
    os.kill(os.getpid(), signal.SIGKILL)
two_passes([1, 2, 3], first, merged, lambda a, b: a, os.sched_getaffinity(0))
"""


def test_none_is_left_when_their_parent_is_killed() -> None:
    # Its own pipe: whoever holds it would keep this test waiting.
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pids = [int(line) for line in done.stdout.split()]
    assert len(pids) == 3
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def same(one: SiteTable, other: SiteTable) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(SiteTable))


def test_the_sites_of_a_large_image_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    image = read_image("/lib/x86_64-linux-gnu/libc.so.6")
    alone = sites._analyse(image)
    monkeypatch.setattr(sites, "LEAST_PART_BYTES", 1 << 17)
    asked: list[int] = []

    def counted(parts: list[object], *given: object) -> object:
        asked.append(len(parts))
        return two_passes.two_passes(parts, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(sites, "two_passes", counted)
    assert same(sites._analyse(image, (0, 1, 2)), alone) and asked == [3]

    def failing(*_: object) -> None:
        return None

    monkeypatch.setattr(sites, "two_passes", failing)
    assert same(sites._analyse(image, (0, 1, 2)), alone)


def test_a_small_image_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(sites, "two_passes", never)
    assert len(sites._analyse(read_image("/bin/true"), (0, 1, 2, 3)))
