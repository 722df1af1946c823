# SPDX-License-Identifier: Apache-2.0
"""The traced process: how it stops, and that it is gone afterwards whatever happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import build, run
from tracees import started
from tracing import SECONDS, SESSION_VARIABLE, compile_small, program_of, streams_of

from checkpoint.binary.syscall_names import call_number
from checkpoint.capture import injected
from checkpoint.process.maps import MapEntry, find_gap, read_maps
from checkpoint.process.memory import visit_processors_of
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import process_state, reaches_state

# Stops at a breakpoint of its own in every round; a handler that leaves by longjmp comes at 4 kHz.
BREAKER = r"""
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
static sigjmp_buf back;
static void on_timer(int number) { (void)number; siglongjmp(back, 1); }
int main(int argc, char **argv)
{
    struct itimerval often = {{0, 250}, {0, 250}};
    (void)argv;
    signal(SIGALRM, on_timer);
    if (argc > 1)
        setitimer(ITIMER_REAL, &often, 0);
    for (;;) {
        sigsetjmp(back, 1);
        __asm__ volatile("int3");
    }
}
"""


@pytest.fixture(scope="module")
def breaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("breaker"), "breaker", BREAKER)


# -- stops


def test_a_pause_and_time_outs(builds: Path) -> None:
    with started(build("flat", builds), "5000") as tracee:
        tracee.resume()
        assert tracee.wait(0.01).what is What.TIMEOUT
        for _ in range(20):
            tracee.request_pause()
            assert tracee.wait(SECONDS).what is What.PAUSED
            assert process_state(tracee.pid) == "t"
            tracee.resume()
            assert process_state(tracee.pid) == "R"


def test_another_stop_answers_a_pause(breaker: Path) -> None:
    """The request may come when the process has stopped already; it must not break what is done at that stop."""
    with started(breaker) as tracee:
        for _ in range(20):
            tracee.resume()
            while process_state(tracee.pid) != "t":
                time.sleep(0.0005)
            tracee.request_pause()
            assert tracee.wait(SECONDS).what is What.BREAKPOINT
            assert tracee.system_call(39) == tracee.pid
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.BREAKPOINT, "the old request is forgotten"


def test_system_calls_of_ours_are_not_left_by_a_handler(breaker: Path) -> None:
    with started(breaker, "timer") as tracee:
        for _ in range(100):
            tracee.resume()
            assert tracee.wait(SECONDS).what is What.BREAKPOINT
            before = bytes(tracee.registers())
            time.sleep(0.0005)
            assert tracee.system_call(39) == tracee.pid
            assert bytes(tracee.registers()) == before


def test_system_calls_fail_with_their_own_error(breaker: Path) -> None:
    with started(breaker) as tracee:
        at = next(e for e in read_maps(tracee.pid) if e.path == str(breaker)).start
        with pytest.raises(FileExistsError):
            tracee.map_memory(at, 4096, executable=False)
        free = find_gap(read_maps(tracee.pid), at, at + 4096, 8192)
        tracee.map_memory(free, 8192, executable=True)
        tracee.write(free, b"text that may not be written by the program")
        assert tracee.read(free, 4) == b"text"
        assert [e.permissions for e in read_maps(tracee.pid) if e.start == free] == ["r-xp"]
        with pytest.raises(OSError, match=r"."):
            tracee.read(free + 8192, 1)


def test_signals_on_their_way_are_passed_on(builds: Path) -> None:
    expected = run(build("raiser", builds), "1").stdout
    with streams_of() as streams, Tracee.start(program_of(build("raiser", builds), "1"), streams) as tracee:
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.EXITING
        tracee.resume()
        assert tracee.wait(SECONDS).what is What.ENDED
        assert streams.stdout.read_text() == expected


def test_waiting_works_off_the_main_thread(builds: Path) -> None:
    """ptrace belongs to a thread: all of it happens in the one that started the program."""
    seen: list[What] = []

    def all_of_it() -> None:
        with started(build("short", builds)) as tracee:
            tracee.resume()
            seen.append(tracee.wait(SECONDS).what)
            tracee.resume()
            seen.append(tracee.wait(SECONDS).what)

    thread = threading.Thread(target=all_of_it)
    thread.start()
    thread.join(SECONDS)
    assert seen == [What.EXITING, What.ENDED]


def test_detached_stopped_and_back(builds: Path) -> None:
    with started(build("flat", builds), "5000") as tracee:
        tracee.resume()
        os.kill(tracee.pid, signal.SIGSTOP)
        assert tracee.wait(SECONDS).what is What.STOPPED
        tracee.detach(leave_stopped=True)
        tracee.wait_until_stopped()
        assert process_state(tracee.pid) == "T"
        tracee.reattach()
        tracee.continue_from_stop()
        assert tracee.wait(0.05).what is What.TIMEOUT
        assert process_state(tracee.pid) == "R"


# -- the end, whatever the state


def at_entry(tracee: Tracee) -> None:
    assert process_state(tracee.pid) == "t"


def running(tracee: Tracee) -> None:
    tracee.resume()


def paused(tracee: Tracee) -> None:
    tracee.resume()
    tracee.request_pause()
    tracee.wait(SECONDS)


def pause_requested(tracee: Tracee) -> None:
    tracee.resume()
    tracee.request_pause()


def listening(tracee: Tracee) -> None:
    tracee.resume()
    os.kill(tracee.pid, signal.SIGTSTP)
    assert tracee.wait(0.05).what is What.TIMEOUT


def detached(tracee: Tracee) -> None:
    tracee.detach()


def detached_stopped(tracee: Tracee) -> None:
    tracee.resume()
    os.kill(tracee.pid, signal.SIGSTOP)
    tracee.wait(SECONDS)
    tracee.detach(leave_stopped=True)


def reattached(tracee: Tracee) -> None:
    detached_stopped(tracee)
    tracee.wait_until_stopped()
    tracee.reattach()


def about_to_exit(tracee: Tracee) -> None:
    registers = tracee.registers()
    registers.rax, registers.rdi = 231, 0  # exit_group
    tracee.write(registers.rip, b"\x0f\x05")
    tracee.set_registers(registers)
    tracee.resume()
    assert tracee.wait(SECONDS).what is What.EXITING


def dead_already(tracee: Tracee) -> None:
    os.kill(tracee.pid, signal.SIGKILL)


STATES = [
    at_entry, running, paused, pause_requested, listening, detached, detached_stopped, reattached, about_to_exit,
    dead_already,
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_killed_whatever_it_is_doing(state: Callable[[Tracee], None], builds: Path) -> None:
    begun = time.monotonic()
    with started(build("flat", builds), "5000") as tracee:
        state(tracee)
    assert process_state(tracee.pid) == "" and tracee.status is not None
    tracee.kill()  # once more does no harm
    assert time.monotonic() - begun < 3


def test_a_stop_that_a_kill_has_ended(builds: Path) -> None:
    """It can no longer be resumed; its end is still told."""
    with started(build("flat", builds), "5000") as tracee:
        os.kill(tracee.pid, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while process_state(tracee.pid) != "t" and time.monotonic() < deadline:
            time.sleep(0.001)
        for _ in range(50):
            tracee.resume()
        assert tracee.wait(SECONDS).what in (What.EXITING, What.ENDED)


@pytest.mark.parametrize("let_go", ["resume", "detach"])
def test_the_program_dies_with_us(let_go: str, builds: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from checkpoint.process.program import *; from checkpoint.process.tracee import *\n"
        f"p = resolve_program([{str(build('flat', builds))!r}, '5000'])\n"
        "t = Tracee.start(p, Streams(*map(Path, sys.argv[1:])))\n"
        f"t.{let_go}(); print(t.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    with streams_of() as streams:
        done = subprocess.run(
            [sys.executable, "-c", code, str(streams.stdout), str(streams.stderr)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == -signal.SIGKILL
        deadline = time.monotonic() + 5
        while process_state(int(done.stdout)) not in ("", "Z") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process_state(int(done.stdout)) in ("", "Z")


@pytest.mark.parametrize("detached", [False, True])
def test_interrupted_from_the_keyboard(detached: bool, builds: Path) -> None:
    """SIGINT while the program runs: KeyboardInterrupt here, and the program gone before it is seen."""
    code = (
        "import os, signal, sys; from pathlib import Path; from checkpoint.process.waiting import process_state\n"
        "from checkpoint.process.program import *; from checkpoint.process.tracee import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell runs in background
        f"p = resolve_program([{str(build('flat', builds))!r}, '5000'])\n"
        "try:\n"
        "  with Tracee.start(p, Streams(*map(Path, sys.argv[1:]))) as t:\n"
        f"    t.detach() if {detached} else t.resume()\n"
        "    print('ready', flush=True)\n"
        "    t.wait(60)\n"
        "except KeyboardInterrupt:\n"
        "  print(repr(process_state(t.pid)))\n"
    )
    with streams_of() as streams:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(streams.stdout), str(streams.stderr)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, SESSION_VARIABLE: os.environ[SESSION_VARIABLE]},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=SECONDS)
    assert out == "''\n" and child.returncode == 0


class _Ended(BaseException):
    """As the handler of a signal that ends us raises it."""


@pytest.mark.parametrize("inside", ["system call", "questions"])
def test_interrupted_while_code_of_ours_runs(inside: str, breaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be asked of a process that runs: trying to put it right must not hide what interrupted us."""

    def end(_number: int, _frame: object) -> None:
        raise _Ended

    pause = call_number("pause")
    monkeypatch.setattr(injected, "call_number", lambda name: pause if name == "brk" else call_number(name))
    before = signal.signal(signal.SIGALRM, end)
    try:
        with started(breaker) as tracee:
            tracee.resume()
            assert tracee.wait(SECONDS).what is What.BREAKPOINT
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(_Ended):
                if inside == "questions":
                    injected.ask(tracee)
                else:
                    tracee.system_call(pause)
            assert process_state(tracee.pid) == "S"
    finally:
        signal.signal(signal.SIGALRM, before)


# -- room for stubs


def entry(start: int, end: int, path: str = "") -> MapEntry:
    return MapEntry(start, end, "r-xp", 0, path)


def test_room_is_near_free_and_away_from_the_stack() -> None:
    image, stack = entry(0x5555_5555_4000, 0x5555_5556_0000, "/p"), entry(0x7FFF_FFFD_E000, 0x7FFF_FFFF_F000, "[stack]")
    library = entry(0x7FFF_F7F0_0000, 0x7FFF_F7FF_0000, "/l")
    maps = [image, library, stack, entry(0xFFFF_FFFF_FF60_0000, 0xFFFF_FFFF_FF60_1000, "[vsyscall]")]
    for near in (image, library):
        at = find_gap(maps, near.start, near.end, 1 << 20)
        assert at % 4096 == 0
        assert max(near.end, at + (1 << 20)) - min(near.start, at) < 1 << 31
        assert all(at + (1 << 20) <= e.start or at >= e.end for e in maps)
        assert at + (1 << 20) <= stack.start - (64 << 20)
    for far in (image.start - (3 << 30), image.end + (3 << 30)):
        full = [entry(0x1_0000, far), entry(far + 4096, 0x7FFF_FFFF_E000)]
        with pytest.raises(LookupError, match="2 GB"):
            find_gap(full, image.start, image.end, 4096)


def test_room_above_a_heap_begins_at_one_place() -> None:
    """Collectors of garbage choose their heap's size by how far it can grow."""
    fixed = entry(0x40_0000, 0x80_0000, "/fixed")
    assert len({find_gap([fixed], fixed.start, fixed.end, size) for size in (4096, 1 << 20, 64 << 20)}) == 1


# -- what was written counts as if it had always been there


def test_processors_are_visited_once_after_writing(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = list[int]()
    monkeypatch.setattr("checkpoint.process.memory.visit_processors_of", visited.append)
    with started(build("flat", builds), "5000") as tracee:
        visited.clear()
        address = tracee.registers().rip
        for writes in (0, 2, 0):
            for _ in range(writes):
                tracee.write(address, tracee.read(address, 1))
            tracee.resume()
            tracee.request_pause()
            assert tracee.wait(SECONDS).what is What.PAUSED
    # At the entry a breakpoint was taken out.
    assert visited == [tracee.pid] * 2


def test_a_visit_goes_to_where_a_thread_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    before, asked = os.sched_getaffinity(0), list[set[int]]()
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: asked.append(set(cpus)))
    with subprocess.Popen(["taskset", "-c", str(max(before)), "sleep", "60"]) as sleeper:
        try:
            assert reaches_state(sleeper.pid, "S", SECONDS)
            while not Path(f"/proc/{sleeper.pid}/comm").read_text().startswith("sleep"):
                time.sleep(0.01)
            visit_processors_of(sleeper.pid)
            assert asked == [{max(before)}, before]
        finally:
            sleeper.kill()
    asked.clear()
    visit_processors_of(sleeper.pid)
    assert asked == [before]
