# SPDX-License-Identifier: Apache-2.0
"""Known work beside the repeats: read, pinned, idle in between, gone with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from made_probe import made_manifest

from checkpoint.restore.criu_restore import RestoreJob
from probe.candidates import local
from probe.node.facts import memory_needed
from probe.node.measuring import PhaseToMeasure, measure_phases
from probe.node.yardsticks import NAMES, Yardsticks
from probe.prediction.busyness import LONGEST, said, slowdowns

ROOT = Path(__file__).parents[2]


def helper_of(pid: int) -> int:
    """The one child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])


def ended(pid: int) -> bool:
    """Whether a process is gone, within some seconds."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_each_yardstick_takes_some_time_on_the_processor_asked_for() -> None:
    cpu = max(os.sched_getaffinity(0))
    with Yardsticks(cpu) as yardsticks:
        reading = yardsticks.read()
        assert len(reading) == len(NAMES) and all(1e-6 < one < 1.0 for one in reading)
        helper = helper_of(os.getpid())
        assert os.sched_getaffinity(helper) == {cpu}
    assert ended(helper)


def test_nothing_is_read_where_no_helper_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/proc/self/mem")
    with Yardsticks(None) as yardsticks:
        assert yardsticks.read() == ()


def test_the_helper_uses_no_processor_between_readings() -> None:
    def used(pid: int) -> int:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

    with Yardsticks(None) as yardsticks:
        yardsticks.read()
        helper = helper_of(os.getpid())
        # It goes back to waiting after its answer.
        time.sleep(0.1)
        before = used(helper)
        time.sleep(0.3)
        assert used(helper) == before


def test_the_helper_ends_with_the_process_that_started_it() -> None:
    code = (
        "import sys; from probe.node.yardsticks import Yardsticks\n"
        "y = Yardsticks(None); y.read(); print(y._process.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout
    helper = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert ended(helper)


def test_a_helper_that_was_killed_costs_the_readings_alone() -> None:
    with Yardsticks(None) as yardsticks:
        os.kill(helper_of(os.getpid()), signal.SIGKILL)
        assert yardsticks.read() == ()
        assert yardsticks.read() == ()


def test_a_helper_that_answered_late_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.node.yardsticks._PATIENCE", 0.2)
    with Yardsticks(None) as yardsticks:
        helper = helper_of(os.getpid())
        os.kill(helper, signal.SIGSTOP)
        assert yardsticks.read() == ()
        with suppress(ProcessLookupError):
            os.kill(helper, signal.SIGCONT)
        assert ended(helper)
        assert yardsticks.read() == ()


def test_the_helper_is_ready_before_anything_is_measured() -> None:
    def used(pid: int) -> int:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

    with Yardsticks(None):
        helper = helper_of(os.getpid())
        time.sleep(0.1)
        before = used(helper)
        time.sleep(0.3)
        assert used(helper) == before


def test_no_helper_is_started_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = made_manifest(3, 60)
    monkeypatch.setattr(local, "available_memory", lambda: memory_needed(manifest) + local._ROOM - 1)
    with local._yardsticks_beside(manifest, None) as yardsticks:
        assert yardsticks is None
    monkeypatch.setattr(local, "available_memory", lambda: memory_needed(manifest) + local._ROOM)
    with local._yardsticks_beside(manifest, None) as yardsticks:
        assert yardsticks is not None and yardsticks.read()


def test_each_repeat_gets_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_measuring import Recorded

    log: list[str] = []
    with Yardsticks(None) as yardsticks:
        read = yardsticks.read

        def noted() -> tuple[float, ...]:
            log.append("read")
            return read()

        monkeypatch.setattr(yardsticks, "read", noted)
        phases = [PhaseToMeasure(RestoreJob(n, Path("nowhere"), (), (), (), (), 0, 0, 0, 1.0)) for n in (1, 2)]
        found = measure_phases(
            phases, Recorded(log), repeats=2, scratch=Path("nowhere"), cpu=None, progress=lambda _: None,
            yardsticks=yardsticks,
        )  # fmt: skip
    assert [line for line in log if line[0] not in "+-"] == ["c1", "read", "c2", "read"] * 2
    assert {len(time.yardsticks) for one in found for time in one.times} == {len(NAMES)}


def test_how_busy_a_node_was() -> None:
    quiet = [1.0] * len(NAMES)
    assert slowdowns([]) == slowdowns([()]) == {}
    assert set(slowdowns([quiet] * 5).values()) == {0.0}
    half = slowdowns([quiet] * 10 + [[1.0, 1.0, 1.0, 1.5]] * 10)
    assert half == {"clock": 0.0, "l2": 0.0, "llc": 0.0, "memory": pytest.approx(0.25)}
    # Interrupted, not busy.
    assert slowdowns([quiet] * 10 + [[2 * LONGEST] * len(NAMES)])["clock"] == 0.0
    assert said(half) == "clock 0.0 %, l2 0.0 %, llc 0.0 %, memory 25.0 %"
    assert said({}) == "not known"
