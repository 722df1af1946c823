# SPDX-License-Identifier: Apache-2.0
"""Recording the system calls of a region: an interruption leaves nothing, and no end of the process stays hidden."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from direct_runs import flat_job
from interruption import interrupted_after
from programs import build
from regions import captured_regions

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.criu.images import read_checkpoint
from checkpoint.restore import quiet_calls, recorded_calls
from checkpoint.restore.quiet_calls import FEWEST, worth_it

SECONDS = 40.0
"""Two million calls watched one by one take minutes."""


def test_an_interruption_while_calls_are_watched_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder could not be removed while the child that watches still put files there."""

    def watch_on(
        _job: Any, _spec: Any, _stamps: Any, _stubs: Any, _: bool, folder: Path, _writer: int, _parent: int
    ) -> None:
        end = time.monotonic() + 20
        for number in itertools.cycle(range(500)):
            try:
                (folder / f"w{number}").touch()
            finally:
                if time.monotonic() > end or not folder.exists():
                    os._exit(0)

    monkeypatch.setattr(recorded_calls, "_report", watch_on)
    monkeypatch.setattr(recorded_calls, "direct_spec", lambda *_: {})
    monkeypatch.setattr(recorded_calls, "stub_areas", lambda _: [])
    with interrupted_after(0.3):
        recorded_calls.record_calls(
            SimpleNamespace(phase=1),  # type: ignore[arg-type]
            SimpleNamespace(stamps=[], threads=[]),  # type: ignore[arg-type]
            tmp_path, tmp_path, scratch=tmp_path,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_watching_has_an_end_before_the_region_is_given_up(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region that asks the time in a loop took longer to watch than a region may take, and was for CRIU alone."""
    (job,) = captured_regions(build("touches", builds), "plain", folder=tmp_path / "plain")
    flat = flat_job(job, tmp_path, watched=False)
    monkeypatch.setattr(recorded_calls, "WATCHED_SECONDS", 0.0)
    pages = read_checkpoint(job.images).pages_image
    found = recorded_calls.record_calls(job, flat, pages, restorer(), scratch=tmp_path)
    assert not found.complete and found.changes_paths


@pytest.mark.parametrize("inside", [True, False])
def test_a_look_hides_no_end(inside: bool, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps one SIGSTOP: ours, sent before the phase's own was taken, becomes the same one. The phase ran on
    behind its end, and one of some thousand was kept for CRIU."""
    (job,) = captured_regions(build("touches", builds), "plain", folder=tmp_path / "plain")
    flat = flat_job(job, tmp_path, watched=False)
    at_call = recorded_calls._Watch._at_call

    def then_look(watch: Any) -> None:
        at_call(watch)
        if watch._inside == inside and watch._found.numbers & {call_number("kill")}:
            # As _wait does; right before the phase's own kill(getpid(), SIGSTOP), or right behind it.
            os.kill(watch._pid, signal.SIGSTOP)
            watch._looking, watch._late = True, False

    monkeypatch.setattr(recorded_calls._Watch, "_at_call", then_look)
    pages = read_checkpoint(job.images).pages_image
    found = recorded_calls.record_calls(job, flat, pages, restorer(), scratch=tmp_path)
    assert {39, 62} <= found.numbers


def recorded(builds: Path, folder: Path, times: str) -> recorded_calls.RecordedCalls:
    path = build("manycalls", builds)
    opened = folder / "data"
    opened.write_text("some")
    (job,) = captured_regions(path, times, str(opened), folder=folder / "captured", direct=True)
    flat = flat_job(job, folder, watched=False)
    return recorded_calls.record_calls(job, flat, read_state(job.images).pages_image, restorer(), scratch=folder)


def test_a_million_calls_are_not_watched_one_by_one(builds: Path, tmp_path: Path) -> None:
    """What is opened in the midst of them is seen, and so is the code that runs besides."""
    begun = time.monotonic()
    found = recorded(builds, tmp_path, "2000000")
    assert time.monotonic() - begun < SECONDS
    assert found.complete and not found.counted and not found.changes_paths
    assert found.opened == [str(tmp_path / "data")]
    masks, opens = call_number("rt_sigprocmask"), call_number("openat")
    assert {masks, opens, call_number("read")} <= found.numbers
    assert 0.9 * FEWEST < found.counts[masks] < 2 * FEWEST and found.counts[opens] == 1
    # Looked at in equal steps of time, calls aside: `compute` is one small loop.
    at, times = max(found.seen.items(), key=lambda one: one[1])
    near = sum(n for address, n in found.seen.items() if abs(address - at) < 64)
    assert times and near > 0.35 * sum(found.seen.values())


def test_few_calls_are_counted(builds: Path, tmp_path: Path) -> None:
    found = recorded(builds, tmp_path, "4000")
    assert found.complete and found.counted and found.counts[call_number("rt_sigprocmask")] == 4000
    assert found.opened == [str(tmp_path / "data")]


def test_what_is_worth_it() -> None:
    masks, opens = call_number("rt_sigprocmask"), call_number("openat")
    assert worth_it({masks: 4900, opens: 100}, 5000) == {masks}
    assert worth_it({masks: 1000, opens: 4000}, 5000) == worth_it({}, 5000) == frozenset()


def test_where_the_kernel_takes_no_filter_all_are_watched(
    builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet_calls, "_program", lambda _: bytes(8))
    found = recorded(builds, tmp_path, "120000")
    assert found.complete and found.counted and found.counts[call_number("rt_sigprocmask")] == 120_000
    assert found.opened == [str(tmp_path / "data")]


@pytest.mark.parametrize("what", ["", "_ended", "_looking", "_threads", "_inside", "_filtered"])
def test_when_a_filter_may_be_put_in(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where a stop is on its way, in the midst of a call, twice, nor beside other threads."""
    tried = []

    def noted(*_: Any) -> bool:
        tried.append(1)
        return True

    monkeypatch.setattr(recorded_calls, "let_through", noted)
    watch = recorded_calls._Watch(
        0, (0, 0), SimpleNamespace(), 1.0, 1.0, [], what == "_threads", []  # type: ignore[arg-type]
    )  # fmt: skip
    watch._found.made = FEWEST
    watch._found.counts = {call_number("read"): FEWEST}
    if what:
        setattr(watch, what, True)
    watch._hurry()
    assert bool(tried) == (what == "") and watch._found.counted == (what != "")
