# SPDX-License-Identifier: Apache-2.0
"""Waits of threads for a processor: those while they ran count, those while they were restored do not."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path

import pytest
from rivals import rivals

from checkpoint import strict_json
from checkpoint.event import EVENT_BYTES, FIRED, STAMP
from checkpoint.flat.control import Report
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore import direct_agent
from checkpoint.restore.direct_agent import RESTORED, Control, Spec, longest_delay, time_region

SPEC: Spec = {
    "threads": 1, "restore_seconds": 60.0, "region_seconds": 60.0, "warm": 0, "start": EVENT_BYTES,
    "end": 2 * EVENT_BYTES, "cpus": sorted(os.sched_getaffinity(0)),
}  # fmt: skip
RESTORING, RUNNING = 0.4, 0.05


def waited() -> float:
    with open("/proc/self/schedstat") as file:
        return int(file.read().split()[1]) * 1e-9


def wait_until(seconds: float) -> float:
    """Compute until this process has waited so long for its processor: as long as it has."""
    while (now := waited()) < seconds:
        pass
    return now


def become_phase(control: Control, cpu: int, told: Path) -> None:
    """In a child: wait long for the processor, be restored, wait a little more, and stop where a region ends."""
    os.sched_setaffinity(0, {cpu})
    restoring = wait_until(RESTORING)
    os.pwrite(control.fd, bytes(Report(progress=RESTORED, restored_s=int(time.monotonic()))), 0)
    running = wait_until(restoring + RUNNING) - restoring
    events = [struct.pack("<qII6q", 0, STAMP, FIRED, second, 0, second, 0, 0, 0) for second in (1, 2, 3)]
    os.pwrite(control.fd, b"".join(events), PAGE_SIZE)
    told.write_text(f"{restoring} {running}")
    os.kill(os.getpid(), signal.SIGSTOP)


def become_agent(folder: Path, cpu: int) -> None:
    """In a child, whose only child is the phase."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    control = Control([0], str(folder))
    phase = os.fork()
    if not phase:
        become_phase(control, cpu, folder / "waited")
        os._exit(1)
    try:
        (folder / "found").write_text(strict_json.dumps(time_region(SPEC, phase, control)))
    finally:
        os.kill(phase, signal.SIGKILL)


def test_what_was_waited_for_while_restoring_does_not_count(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    with rivals(cpu, 1):
        agent = os.fork()
        if not agent:
            try:
                become_agent(tmp_path, cpu)
            finally:
                os._exit(0)
        os.waitpid(agent, 0)
    found = strict_json.loads((tmp_path / "found").read_bytes())
    restoring, running = map(float, (tmp_path / "waited").read_text().split())
    assert found["status"] == "ok"
    # All that was waited for while it ran; of the rest at most what somebody has not yet looked at.
    assert running <= found["delay"] + 1e-6 and found["delay"] < running + restoring / 2


def test_threads_that_cannot_be_listed_fail_no_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)
    monkeypatch.setattr(direct_agent, "children", lambda: [gone])
    assert longest_delay({}) is None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it may go nowhere else")
def test_a_thread_keeps_its_processor_for_a_while(tmp_path: Path) -> None:
    """Until the time is over within which the kernel would put two on one, and no longer."""
    everywhere, one, control = os.sched_getaffinity(0), {max(os.sched_getaffinity(0))}, Control([0], str(tmp_path))
    agent = os.fork()
    if not agent:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        phase = os.fork()
        if not phase:
            os.sched_setaffinity(0, one)
            restored = time.monotonic()
            said = Report(progress=RESTORED, restored_s=int(restored), restored_ns=int(restored % 1 * 1e9))
            os.pwrite(control.fd, bytes(said), 0)
            while os.sched_getaffinity(0) == one and time.monotonic() < restored + 10:
                time.sleep(0.001)
            kept = time.monotonic() - restored
            (tmp_path / "kept").write_text(f"{kept} {os.sched_getaffinity(0) == everywhere}")
            os._exit(0)
        time_region(SPEC, phase, control)
        os._exit(0)
    os.waitpid(agent, 0)
    kept, wide = (tmp_path / "kept").read_text().split()
    assert 0.08 < float(kept) < 5 and wide == "True"
