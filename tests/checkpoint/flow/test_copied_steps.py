# SPDX-License-Identifier: Apache-2.0
"""Steps noted by copies of the code: the same as under ptrace, many times faster, and nothing else changes."""

from __future__ import annotations

import os
import signal
import time
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
from checkpoint.flow.comparing import compare
from checkpoint.flow.copied_block import copied_block
from checkpoint.flow.copied_steps import CopiedSteps
from checkpoint.flow.flow import Flow, Passed, Plan
from checkpoint.flow.points import choose_points
from checkpoint.flow.stepping import prepare, step
from checkpoint.flow.watching import FlowWatcher
from checkpoint.linux import PTRACE_TRACEME
from checkpoint.process.ptrace import ptrace

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


def test_a_copy_is_made_of_what_it_can_note_alone() -> None:
    """Contents of memory say how often a comparison is repeated, and no `lea` has an address of 64 bits."""

    def copied(code: str) -> bool:
        data = bytes.fromhex(code) + b"\xc3"
        return copied_block(lambda at, size: (data + bytes(size))[:size], 0x1000, 0x2000, 0x3000) is not None

    assert copied("f3a4") and copied("a6") and copied("f20fc2c100") and copied("488b07")
    assert not any(copied(code) for code in ("f3a6", "f248a7", "f2ae", "f366af", "48a10011223344556677"))


@pytest.mark.parametrize("kind", ["jit", "patches"])
def test_code_that_changes_is_followed(builds: Path, tmp_path: Path, kind: str) -> None:
    """Ten loads from each word of an array, by one instruction whose operand is changed."""
    watcher = watcher_of(builds, tmp_path, kind)
    once = watcher.watch()
    flow = watcher.watch(Plan(choose_points(once), 3000, in_copies=True))
    assert flow.in_copies and flow.counts == once.counts
    loads = []
    for one in flow.passed:
        used = np.array(steps_of(one, 3000)[1])
        loads.append(used[(used >= 0x200000000) & (used < 0x200008000)])
        assert set(np.diff(loads[-1]).tolist()) <= {0, 8}
        changes = np.flatnonzero(np.diff(loads[-1]))
        assert set(np.diff(changes).tolist()) <= {10} and len(changes) >= len(loads[-1]) // 10 - 1
    assert max(map(len, loads)) > 40


def test_the_length_of_a_comparison_shows(builds: Path, tmp_path: Path) -> None:
    """Arrays that are the same up to a row's end: the same blocks, and the same addresses at each begin."""
    watcher = watcher_of(builds, tmp_path, "strings")
    once = watcher.watch()
    plan = Plan(choose_points(once), STEPS, in_copies=True)
    flow = watcher.watch(plan)
    ones = memoryview(np.ones(128 * 128)).cast("B")
    other = watcher.watch(replace(plan, contents=lambda: iter([(at, ones) for at in (0x200000000, 0x210000000)])))
    assert other.counts == flow.counts == once.counts
    assert compare(watcher.watch(plan), flow).none and compare(other, flow).addresses > 100


def test_handled_signals_are_refused(builds: Path, tmp_path: Path) -> None:
    """A handler sees where the process was, and says where it goes on: in a copy, that is another place."""
    watcher = watcher_of(builds, tmp_path, "faults")
    plan = Plan(choose_points(watcher.watch()), STEPS)
    watcher.watch(plan)
    with pytest.raises(PhaseFailed, match=r"handled signals \(the first: 11\) while its steps were noted"):
        watcher.watch(replace(plan, in_copies=True))


def test_single_steps_are_made_where_copies_have_no_room(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = watcher_of(builds, tmp_path, "plate")
    plan = Plan(choose_points(watcher.watch()), STEPS, in_copies=True)
    copied = watcher.watch(plan)

    def full(_: object) -> int:
        raise LookupError("no memory is free")

    monkeypatch.setattr(CopiedSteps, "_low_memory", full)
    stepped = watcher.watch(plan)
    assert copied.in_copies and not stepped.in_copies
    assert compare(stepped, watcher.watch(replace(plan, in_copies=False))).none


def test_a_step_that_never_ends_is_given_up() -> None:
    prepare()
    pid = os.fork()
    if not pid:
        ptrace(PTRACE_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()
        os._exit(0)
    try:
        os.waitpid(pid, 0)
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="cannot be stepped"):
            while True:
                step(pid, 10_000, begun + 2)
        assert time.monotonic() - begun < 60
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


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
