# SPDX-License-Identifier: Apache-2.0
"""One measurement at a time on a node, whoever measures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from candidate_runs import Listening, assert_nothing_left, command, guest, probed, root
from direct_runs import NOBODY, as_nobody
from small_probe import ROOT, SmallProbe, small_probe
from sshd import machine

from checkpoint.errors import NodeBusy
from probe.candidates.remote import CandidateResult
from probe.node import machine_lock
from probe.node.machine_lock import measuring_alone
from probe.ssh.addresses import Address

_FIRST = 900_000 + os.getpid() * 10
"""Numbers of processors that no machine has: other measurements here are none of ours."""

_HOLD = """
import sys
from probe.node.machine_lock import measuring_alone
with measuring_alone([int(cpu) for cpu in sys.argv[1:]]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another(*cpus: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", _HOLD, *map(str, cpus)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        yield holder


def test_the_holder_is_named_to_everybody_who_asks() -> None:
    with held_by_another(_FIRST, _FIRST + 1) as holder:
        for _ in range(20):
            told: list[str] = []
            refused = pytest.raises(NodeBusy, match=f"process {holder.pid} of user 0")
            with refused, measuring_alone([_FIRST + 1], wait=0, waiting=told.append):
                pass
            assert len(told) == 1 and f"process {holder.pid} of user 0" in told[0]
        # What it does not hold is free.
        with measuring_alone([_FIRST + 2], wait=0):
            pass


def test_who_waits_is_told_once_and_goes_on_when_the_holder_dies() -> None:
    told: list[str] = []
    with held_by_another(_FIRST) as holder:
        killing = threading.Timer(0.7, holder.send_signal, (signal.SIGKILL,))
        killing.start()
        begun = time.monotonic()
        with measuring_alone([_FIRST], wait=30, waiting=told.append):
            assert 0.6 < time.monotonic() - begun < 20
        killing.join()
    assert len(told) == 1


def test_nothing_is_held_after_a_failure() -> None:
    with held_by_another(_FIRST + 1):
        with pytest.raises(NodeBusy), measuring_alone([_FIRST, _FIRST + 1], wait=0):
            pass
        with measuring_alone([_FIRST], wait=0):
            pass
    with pytest.raises(ValueError), measuring_alone([_FIRST]):
        raise ValueError
    with measuring_alone([_FIRST], wait=0):
        pass


def test_locks_are_taken_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two could wait for each other."""
    taken: list[bytes] = []
    real = machine_lock._take

    def take(name: bytes) -> object:
        taken.append(name)
        return real(name)

    monkeypatch.setattr(machine_lock, "_take", take)
    with measuring_alone({_FIRST + 9, _FIRST, _FIRST + 5}, wait=0):
        pass
    assert taken == [b"\0probe-measuring-cpu-%d" % (_FIRST + n) for n in (0, 5, 9)]


def test_children_do_not_keep_the_lock() -> None:
    with measuring_alone([_FIRST], wait=0):
        child = subprocess.Popen(["sleep", "30"])
    try:
        with measuring_alone([_FIRST], wait=0):
            pass
    finally:
        child.kill()
        child.wait()


def test_users_keep_each_other_out() -> None:
    def try_it() -> str:
        try:
            with measuring_alone([_FIRST], wait=0):
                return "alone"
        except NodeBusy as error:
            return str(error)

    with measuring_alone([_FIRST], wait=0):
        assert f"process {os.getpid()} of user 0" in as_nobody(try_it)
    assert NOBODY and as_nobody(try_it) == "alone"


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.mark.alone("tells who has the lock of this machine's processors, and for how long")
def test_two_probers_measure_one_after_the_other(tmp_path: Path, small: SmallProbe) -> None:
    with machine(tmp_path / "machine") as made:
        # Two servers, two users: still one node.
        first, second = made.serve(), made.serve()
        held, waiting = threading.Event(), threading.Event()
        found: dict[str, CandidateResult] = {}

        def signal_first(name: str) -> None:
            lines = made.users_processes().items()
            made.run(
                ["kill", name, *(str(pid) for pid, line in lines if line.endswith("/home/guest/.cache/probe-node"))]
            )

        def hold(kind: str, _: object) -> None:
            if kind == "measured" and not held.is_set():
                signal_first("-STOP")
                held.set()

        def note(kind: str, value: object) -> None:
            if kind == "say" and str(value).startswith("waiting for another measurement: process "):
                waiting.set()

        watchers = {"first": Listening(hold), "second": Listening(note)}

        def probe_with(name: str, candidate: list[Address], repeats: int) -> None:
            (found[name],) = probed(made, small.path, candidate, repeats=repeats, watcher=lambda _: watchers[name])

        threads = [threading.Thread(target=probe_with, args=("first", guest(first), 8))]
        threads[0].start()
        assert held.wait(60)
        refused = command(
            made, small.path, "--on", f"root@127.0.0.1:{second.port}", "--wait", "0", "-q", status=NodeBusy.exit_code
        )
        assert "another measurement is running here (process " in refused.stderr and "of user 12345" in refused.stderr
        threads.append(threading.Thread(target=probe_with, args=("second", root(second), 1)))
        threads[1].start()
        assert waiting.wait(60)
        signal_first("-CONT")
        for thread in threads:
            thread.join()
        for result in found.values():
            assert result.result is not None, result.error
        assert len(found) == 2 and sum("waiting" in said for said in watchers["second"].said) == 1
        assert not any("waiting" in said for said in watchers["first"].said)
        assert_nothing_left(made)
