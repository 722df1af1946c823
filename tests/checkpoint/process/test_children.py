# SPDX-License-Identifier: Apache-2.0
"""Processes that a traced program starts: followed to their end, and nothing of ours in them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import build, symbols
from tracees import started
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.errors import ProgramUnsupported
from checkpoint.event import STAMP, STOP_BEFORE
from checkpoint.process.children import Child, shares_memory
from checkpoint.process.loader import LoadWatch
from checkpoint.process.plain_run import run_plain
from checkpoint.process.tracee import Tracee, What
from checkpoint.process.waiting import process_state, threads_of
from checkpoint.stubs.counters import SiteCounters
from checkpoint.stubs.encode import Event
from checkpoint.stubs.markers import Marker, MarkerSet

# A child that opens a library; then the program does, if asked to wait for that.
OPENER = r"""
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(dlopen("libm.so.6", RTLD_NOW) == 0);
    return waitpid(child, &status, 0) < 0 || status != 0;
}
"""

# Starts one process after another, until the file that it is given is there.
STARTER = r"""
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    while (argc > 1 && access(argv[1], F_OK)) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, 0, 0);
    }
    return 0;
}
"""


def ended(tracee: Tracee) -> int:
    """Let the stopped process run to its end, and return its status."""
    tracee.resume()
    while (occurrence := tracee.wait(SECONDS)).what is not What.ENDED:
        assert occurrence.what is not What.TIMEOUT, "it hangs"
        tracee.resume()
    return occurrence.status


def followed(path: Path, *arguments: str) -> list[Child]:
    with started(path, *arguments) as tracee:
        assert ended(tracee) == 0
        return tracee.children.processes()


def test_children_and_theirs_are_followed(builds: Path) -> None:
    found = followed(build("helpers", builds), "60", "system", "20")
    assert [c.command for c in found] == ["sh -c uname -s >/dev/null; :", "uname -s"] * 2
    assert [c.parent for c in found] == [None, found[0], None, found[2]]
    assert all(c.began < c.ended <= c.gone and c.cpu > 0 for c in found if c.ended and c.gone)
    assert all(c.ended and c.gone for c in found)


@pytest.mark.timed
@pytest.mark.parametrize("mode", ["fork", "vfork", "beside"])
def test_what_children_take_is_told(mode: str, builds: Path) -> None:
    path = build("helpers", builds)
    found = followed(path, "100", mode, "40")
    assert len(found) == (1 if mode == "beside" else 2)
    with streams_of() as streams:
        plain = run_plain(program_of(path, "100", mode, "40"), streams)
    with started(path, "100", mode, "40") as tracee:
        ended(tracee)
        whole = tracee.finish().cpu
        assert tracee.own_cpu + tracee.children.cpu() == pytest.approx(whole, rel=0.05)
    assert whole == pytest.approx(plain.cpu, rel=0.25)


def test_counts_of_forked_children_stay_with_them(builds: Path) -> None:
    """And those of a child by vfork, which has the program's memory, are the same in every run."""
    path = build("helpers", builds)
    for mode, more in (("fork", 0), ("vfork", 2_000)):
        for _ in range(2):
            with started(path, "100", mode, "40") as tracee:
                watch, counters = LoadWatch(tracee), SiteCounters(tracee)
                for loaded in watch.new_images():
                    counters.install(loaded)
                tracee.resume()
                while tracee.wait(SECONDS).what is not What.EXITING:
                    tracee.resume()
                site = symbols(path)["site_work"]
                sites = counters.images[0].sites
                block = (sites.block_start <= site) & (site < sites.block_start + sites.block_bytes)
                assert counters.read()[block].tolist() == [100_000 + more]


def test_a_forked_child_does_not_stop_at_the_programs_markers(builds: Path) -> None:
    """The 45,000th execution is the child's at first, which starts after 40,000 and makes 10,000."""
    path = build("helpers", builds)
    with started(path, "100", "fork", "40") as tracee:
        watch = LoadWatch(tracee)
        sites = SiteCounters(tracee)
        column = sites_column(sites, watch, path)
        markers = MarkerSet(tracee, {Marker(str(path), column): [Event(45_000, STOP_BEFORE | STAMP)]})
        watch = LoadWatch(tracee)
        watch.arm()
        markers.install_new(watch)
        tracee.resume()
        occurrence = tracee.wait(SECONDS)
        while occurrence.what is What.BREAKPOINT:
            watch.step_over()
            tracee.resume()
            occurrence = tracee.wait(SECONDS)
        assert occurrence.what is What.STOPPED, "the child stopped in its place"
        assert tracee.children.living() == [] and len(tracee.children.processes()) == 1


def sites_column(counters: SiteCounters, watch: LoadWatch, path: Path) -> int:
    """Address of the site in the block of site_work; nothing is installed."""
    from checkpoint.binary.sites import find_sites

    loaded = watch.new_images()[0]
    sites, site = find_sites(loaded.image), symbols(path)["site_work"]
    block = (sites.block_start <= site) & (site < sites.block_start + sites.block_bytes)
    return int(sites.offset[block][0])


def test_a_forked_child_may_open_libraries(tmp_path: Path) -> None:
    """The breakpoint in the loader is the program's alone: nobody would step a child over it."""
    with started(compile_small(tmp_path, "opener", OPENER, "-ldl")) as tracee:
        watch = LoadWatch(tracee)
        assert watch.arm()
        tracee.resume()
        while (occurrence := tracee.wait(SECONDS)).what is not What.ENDED:
            if occurrence.what is What.BREAKPOINT:
                watch.step_over()
            tracee.resume()
        assert os.waitstatus_to_exitcode(occurrence.status) == 0


def test_a_pause_is_answered_though_children_start(tmp_path: Path) -> None:
    """The stop at the start of a child takes the place of the one that was asked for."""
    stop = tmp_path / "stop"
    with started(compile_small(tmp_path, "starter", STARTER), str(stop)) as tracee:
        tracee.resume()
        for _ in range(100):
            tracee.request_pause()
            assert tracee.wait(5).what is What.PAUSED
            tracee.resume()
        stop.touch()
        while tracee.wait(SECONDS).what is not What.ENDED:
            tracee.resume()


def test_a_child_that_shares_the_memory_is_refused(builds: Path) -> None:
    with started(build("helpers", builds), "100", "clone") as tracee, pytest.raises(ProgramUnsupported, match="shares"):
        tracee.resume()
        tracee.wait(SECONDS)
    assert shares_memory(os.getpid(), os.getpid())


@pytest.mark.timed
def test_when_a_child_was_waited_for_is_known(builds: Path) -> None:
    """It ends at once, and its parent waits for it when it has worked for so long."""
    with started(build("helpers", builds), "400", "later") as tracee:
        begun = time.monotonic()
        assert ended(tracee) == 0
        took = time.monotonic() - begun
        (child,) = tracee.children.processes()
    assert child.ended and child.kept and child.gone and child.ended < begun + 0.5 * took
    assert begun + 0.6 * took < child.kept < child.gone < begun + 0.9 * took
    assert child.gone - child.kept < 0.1 * took


def test_a_child_that_nobody_waits_for_stays_present(builds: Path) -> None:
    with started(build("helpers", builds), "60", "zombies") as tracee:
        tracee.resume()
        while tracee.wait(SECONDS).what is not What.EXITING:
            tracee.resume()
        (child,) = tracee.children.processes()
        assert child.ended is not None and child.gone is None


def test_children_that_go_on_end_with_the_tracing(builds: Path) -> None:
    with started(build("helpers", builds), "3000", "daemon") as tracee:
        ended(tracee)
        (child,) = tracee.children.living()
        begun = time.monotonic()
    assert process_state(child.pid) in ("", "Z") and time.monotonic() - begun < 2


@contextmanager
def launched(path: Path, how: str) -> Iterator[tuple[Tracee, Child]]:
    """perl, and what it starts, which has executed its program: threads will follow."""
    with started(Path("/usr/bin/perl"), "-e", "exit system(@ARGV) >> 8", str(path), "400", how) as tracee:
        tracee.resume()
        begun = time.monotonic()
        while not any(child.command.startswith(path.name) for child in tracee.children.all):
            assert tracee.wait(0.001).what is What.TIMEOUT and time.monotonic() - begun < SECONDS
        yield tracee, tracee.children.all[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["poll", "crews"])
def test_children_end_with_their_threads(how: str, builds: Path) -> None:
    """A process is waited for in vain as long as its threads stand at their exit events."""
    with launched(build("crews", builds), how) as (tracee, child):
        while len(tracee.children.all) < 3:
            assert tracee.wait(0.001).what is What.TIMEOUT
        assert child.ended is None and tracee.children.all[2].thread
    assert process_state(child.pid) in ("", "Z")


@pytest.mark.timeout(60)
def test_a_thread_that_is_not_known_yet_ends_with_its_process(builds: Path) -> None:
    """It was started since the last look, and stands at its first stop."""
    with launched(build("crews", builds), "poll") as (tracee, child):
        begun = time.monotonic()
        while len(threads_of(child.pid)) < 2:
            assert time.monotonic() - begun < SECONDS
        assert tracee.children.all == [child]
    assert process_state(child.pid) in ("", "Z")


@pytest.mark.parametrize("own", [True, False])
def test_a_process_that_is_not_known_yet_ends_with_its_starter(own: bool, tmp_path: Path) -> None:
    """As above; the starter is the program itself, or its child."""
    starter = compile_small(tmp_path, "starter", STARTER)
    arguments = (starter,) if own else (Path("/usr/bin/perl"), "-e", "exit system(@ARGV) >> 8", str(starter))
    with started(arguments[0], *map(str, arguments[1:]), str(tmp_path / "stop")) as tracee:
        tracee.resume()
        begun = time.monotonic()
        fresh = set[int]()
        while not fresh:
            assert own or tracee.wait(0.001).what is What.TIMEOUT
            time.sleep(0.005)
            known = {child.pid for child in tracee.children.all}
            starters = [tracee.pid] if own else [c.pid for c in tracee.children.all if c.command.startswith("starter")]
            fresh = {number for pid in starters for number in children_of(pid)} - known
            assert time.monotonic() - begun < SECONDS
    assert {process_state(number) for number in fresh} <= {"", "Z"}


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []
