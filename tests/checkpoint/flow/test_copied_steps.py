# SPDX-License-Identifier: Apache-2.0
"""Steps noted by copies of the code: the same as under ptrace, many times faster, and nothing else changes."""

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
from checkpoint.flow.comparing import compare
from checkpoint.flow.flow import Flow, Passed, Plan
from checkpoint.flow.points import choose_points
from checkpoint.flow.watching import FlowWatcher

STEPS = 300


def watcher_of(builds: Path, folder: Path, kind: str) -> FlowWatcher:
    (job,) = captured_regions(build("arrays", builds), kind, folder=folder / "captured", direct=True)
    flat = flat_job(job, folder)
    return FlowWatcher(job, flat, read_state(job.images).pages_image, restorer(), scratch=folder, cpu=None)


def steps_of(one: Passed, most: int) -> tuple[list[int], list[int]]:
    """Places, and the addresses used, of the first steps at a point."""
    window = one.window
    assert hasattr(window, "places")
    return window.places[:most].tolist(), window.used[:most].tolist()


@pytest.mark.parametrize("kind", ["plate", "sparse", "writes", "node", "sorted"])
def test_copies_note_what_single_steps_show(builds: Path, tmp_path: Path, kind: str) -> None:
    watcher = watcher_of(builds, tmp_path, kind)
    once = watcher.watch()
    plan = Plan(choose_points(once), STEPS)
    stepped, copied = watcher.watch(plan), watcher.watch(replace(plan, in_copies=True))
    assert copied.counts == once.counts and copied.calls.made == once.calls.made
    assert [p.point for p in copied.passed] == [p.point for p in stepped.passed]
    assert [p.state for p in copied.passed] == [p.state for p in stepped.passed]
    for mine, other in zip(copied.passed, stepped.passed, strict=True):
        # Where a window ends at the next point, the step that reaches it is counted on one side alone.
        most = min(len(mine.window), len(other.window)) - 1
        assert abs(len(mine.window) - len(other.window)) <= 2
        assert steps_of(mine, most) == steps_of(other, most)


def test_every_way_to_the_next_block_is_followed(builds: Path, tmp_path: Path) -> None:
    """`loop`, `jrcxz`, calls, returns, jumps by register, strings, and flags that other blocks read."""
    watcher = watcher_of(builds, tmp_path, "ways")
    once = watcher.watch()
    plan = Plan(choose_points(once), 2000, in_copies=True)
    copied = watcher.watch(plan)
    assert copied.counts == once.counts
    assert compare(watcher.watch(plan), copied).none and copied.steps > 2000
    stepped = watcher.watch(replace(plan, steps=STEPS, in_copies=False))
    for mine, other in zip(copied.passed, stepped.passed, strict=True):
        # `rep movs` is one step for a copy, and a step for each word under ptrace.
        both = [[p for p, before in zip(one, [0, *one], strict=False) if p != before]
                for one in (steps_of(mine, 2000)[0], steps_of(other, STEPS)[0])]  # fmt: skip
        n = min(map(len, both)) - 1
        assert both[0][:n] == both[1][:n]


def test_other_addresses_show(builds: Path, tmp_path: Path) -> None:
    """Column numbers that are all 1: the same blocks, at other addresses."""
    watcher = watcher_of(builds, tmp_path, "sparse")
    once = watcher.watch()
    plan = Plan(choose_points(once), STEPS, in_copies=True)
    ones = memoryview(np.ones(128 * 128, dtype=np.int32)).cast("B")
    other = watcher.watch(replace(plan, contents=lambda: iter([(0x220000000, ones)])))
    found = compare(other, watcher.watch(plan))
    assert other.counts == once.counts and found.addresses > 100


def test_unknown_addresses_are_said(builds: Path, tmp_path: Path) -> None:
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2 here")
    watcher = watcher_of(builds, tmp_path, "gather")
    once = watcher.watch()
    flow = watcher.watch(Plan(choose_points(once), STEPS, in_copies=True))
    assert compare(flow, flow).unknown > flow.steps / 100
    assert Flow(flow.counts, flow.calls).steps == 0
