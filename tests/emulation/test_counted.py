# SPDX-License-Identifier: Apache-2.0
"""Counters of the kernel and traced calls: what they count, and what is said where they do not."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import probe
from checkpoint.errors import ProgramNotRunnable
from probe.emulation import counted
from probe.emulation.counted import NOT_TRACED, CounterWatcher
from probe.emulation.counting.calls import Calls
from probe.emulation.counting.hardware import EVENTS, Counter, Event
from probe.emulation.counting.perf_event import HARDWARE, SOFTWARE
from probe.emulation.metrics import cpu_seconds, metrics

BURN = """
import os, time
for _ in range(3):
    if not os.fork():
        while time.process_time() < 0.1: pass
        os._exit(0)
    os.wait()
"""

# What the kernel counts by itself everywhere, in place of what this processor may not count.
TASK_CLOCK, FAULTS = Event(SOFTWARE, 1, "instructions"), Event(SOFTWARE, 2, "cycles")


def python(text: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text]


# -- counters


def test_counters_count_all_processes_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nanoseconds of CPU time, by the kernel's counter, against wait4; page faults likewise."""
    watcher = CounterWatcher({"instructions": TASK_CLOCK, "cycles": FAULTS})
    monkeypatch.setattr("probe.emulation.sampling.CounterWatcher", lambda: watcher)
    usage = probe.profile_usage(python(BURN))
    used = cpu_seconds(usage)
    assert used is not None
    # The supervisor's own start of the command is in it.
    assert (usage.total("instructions") or 0) / 1e9 == pytest.approx(used, rel=0.1)
    faults = (usage.total("faults_minor") or 0) + (usage.total("faults_major") or 0)
    # Those that the kernel has by itself, as when it starts a program, are in wait4's alone. The supervisor has few.
    assert 0.3 * faults < (usage.total("cycles") or 0) < 1.05 * faults
    assert usage.column("instructions").min() >= 0 and usage.samples > 2
    assert usage.header.columns["instructions"].source.startswith("perf_event_open, user code")


def test_the_last_sample_is_counted_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one look at the begin and no other, all that the command used comes behind it."""
    watcher = CounterWatcher({"instructions": TASK_CLOCK, "cycles": FAULTS})
    monkeypatch.setattr("probe.emulation.sampling.CounterWatcher", lambda: watcher)
    monkeypatch.setattr(Counter, "shared", property(lambda _: True, lambda *_: None), raising=False)
    usage = probe.profile_usage(python(BURN), rate=0.5)
    used = cpu_seconds(usage)
    assert used is not None and used > 0.25
    assert (usage.total("instructions") or 0) / 1e9 == pytest.approx(used, rel=0.1)
    assert "counted for a part of the time, and extrapolated: cycles, instructions" in usage.header.notes


def test_a_counter_that_there_is_not_is_named_with_the_reason() -> None:
    watcher = CounterWatcher({"instructions": Event(HARDWARE, 999, "instructions"), "cycles": TASK_CLOCK})
    watcher.begin(os.getpid())
    try:
        assert watcher.columns["instructions"].missing.startswith("this machine does not count them (perf_event_open:")
        assert watcher.columns["cycles"].missing == ""
        assert watcher.columns["flops"].missing
    finally:
        watcher.give_up()


def test_every_counter_is_a_number_or_a_reason() -> None:
    usage = probe.profile_usage(python("pass"))
    for name in (*EVENTS, "flops"):
        column = usage.header.columns[name]
        assert bool(column.missing) == bool(np.isnan(usage.column(name)).all()), name
        assert column.missing or usage.total(name), name
    (efficiency,) = [one for one in metrics(usage) if one.name == "efficiency"]
    unknown = any(usage.header.columns[name].missing for name in ("cycles", "stalled_frontend", "stalled_backend"))
    assert (efficiency.total is None) == unknown and bool(efficiency.missing) == unknown


def test_what_was_counted_for_a_part_of_the_time_is_extrapolated_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(100, 1000, 250), (5, 1000, 0), (7, 0, 0)]
    counter = Counter(TASK_CLOCK, os.getpid())
    try:
        monkeypatch.setattr(os, "read", lambda _file, _size: np.array(answers.pop(0), dtype=np.uint64).tobytes())
        assert (counter.read(), counter.shared) == (400.0, True)
        assert counter.read() is None
        assert counter.read() == 7.0
    finally:
        counter.close()
    watcher = CounterWatcher({"cycles": TASK_CLOCK})
    watcher._counters["cycles"] = counter
    assert watcher.notes() == ["counted for a part of the time, and extrapolated: cycles"]


# -- calls


def test_sizes_of_blocks_and_bytes_of_sockets(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server,))
        thread.start()
        port = server.getsockname()[1]
        text = (
            "import os, socket\n"
            f"d = os.open({str(tmp_path / 'x')!r}, os.O_RDWR | os.O_CREAT)\n"
            "for _ in range(200): os.write(d, bytes(12345))\n"
            "os.lseek(d, 0, 0)\nwhile os.read(d, 4096): pass\n"
            f"c = socket.create_connection(('127.0.0.1', {port}))\nc.sendall(bytes(3000))\nc.recv(7)\nc.close()\n"
            "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.sendto(bytes(500), ('127.0.0.1', 9))\n"
        )
        usage = probe.profile_usage(python(text), trace_calls=True)
        thread.join()
    assert usage.header.columns["block_read"].source.startswith("strace")
    assert 12345 in usage.column("block_written") and 4096 in usage.column("block_read")
    # A connection that no look has met; and what is no TCP.
    assert (usage.total("socket_sent"), usage.total("socket_received")) == (3500, 7)
    assert [(e.address, e.port, e.sent, e.received) for e in usage.header.endpoints] == [("127.0.0.1", port, 3000, 7)]
    assert "calls were traced: the command took longer for it" in usage.header.notes
    # What the supervisor and strace do is not the command's.
    assert (usage.total("processes"), usage.header.exit_status) == (1, 0)


def _answer(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        got = 0
        while got < 3000:
            got += len(connection.recv(4096))
        connection.sendall(b"x" * 7)
        connection.recv(1)


def test_calls_that_wait_are_put_together_again() -> None:
    calls = Calls()
    for line in (
        "10 read(3</a>,  <unfinished ...>",
        '11 sendto(4<TCPv6:[[::1]:9->[::1]:80]>, ""..., 10, 0, NULL, 0) = 10',
        '10 <... read resumed>""..., 65536) = 1000',
        "12 <... write resumed>) = 7",
        '10 read(3</a>, "", 65536) = 0',
        "13 recvfrom(5<TCP:[127.0.0.1:3333->127.0.0.1:80]>,  <unfinished ...>",
        '13 <... recvfrom resumed>""..., 200, 0, NULL, NULL) = 100',
        "10 read(3</a>, 0x7ffd, 65536) = -1 EAGAIN (Resource temporarily unavailable)",
        '10 write(1</dev/pts/0<char 136:0>>, ""..., 5) = 5',
        "10 +++ exited with 0 +++",
        "nonsense",
    ):
        calls.take(line)
    assert calls.blocks() == (550.0, 7.5)
    assert calls.socket_totals() == (100, 10)
    assert calls.endpoints() == [("127.0.0.1", 80, 100, 0), ("::1", 80, 0, 10)]
    assert np.isnan(calls.blocks()).all()


def test_without_being_asked_for_calls_are_not_known() -> None:
    usage = probe.profile_usage(["true"])
    for name in ("block_read", "block_written", "socket_received", "socket_sent"):
        assert usage.header.columns[name].missing == NOT_TRACED
        assert np.isnan(usage.column(name)).all()


@pytest.mark.parametrize("said", ["strace is not installed", "strace may not trace here: "])
def test_where_strace_cannot_trace_its_columns_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    if "not installed" in said:
        monkeypatch.setattr("probe.emulation.counting.calls.which", lambda _: None)
    else:
        refusing = tmp_path / "strace"
        refusing.write_text("#!/bin/sh\necho 'attach: Operation not permitted' >&2\nexit 1\n")
        refusing.chmod(0o755)
        monkeypatch.setattr("probe.emulation.counting.calls.which", lambda _: str(refusing))
        said += "attach: Operation not permitted"
    usage = probe.profile_usage(python("import time; time.sleep(0.1)"), trace_calls=True)
    assert usage.header.columns["block_read"].missing == said
    assert usage.total("socket_sent") is None and usage.header.notes == ()


def test_nothing_goes_on_where_the_command_does_not_start(tmp_path: Path) -> None:
    """The fixture of all tests finds an strace that stays."""
    script = tmp_path / "x"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ProgramNotRunnable):
        probe.profile_usage([str(script)], trace_calls=True)
    limit = time.monotonic() + 10
    while len(list(Path("/proc/self/fd").iterdir())) > before and time.monotonic() < limit:
        time.sleep(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert counted.CallWatcher(False).endpoints() == ()
