# SPDX-License-Identifier: Apache-2.0
"""The start of a program: from one state whoever starts it, and refusals of what cannot be started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from programs import bad_file, build
from tracees import started
from tracing import SECONDS, compile_small, program_of, streams_of

from checkpoint.errors import ProbeError, ProgramFailed
from checkpoint.linux import ADDR_NO_RANDOMIZE
from checkpoint.process.maps import read_maps
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Program, Streams
from checkpoint.process.tracee import Tracee, What

TELL = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv)
{
    char line[512], text[4096];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(line, sizeof line, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(line, text, sizeof text - 1);
        if (n >= 0)
            text[n] = 0, printf("fd %d %s %d\n", fd, text, fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    }
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Sig", 3))
            fputs(line, stdout);
    fclose(status);
    FILE *personality = fopen("/proc/self/personality", "r");
    printf("personality %s", fgets(line, sizeof line, personality));
    fclose(personality);
    printf("cwd %s\nsession %d\n", getcwd(text, sizeof text), getsid(0) == getpid());
    for (int i = 0; i < argc; i++)
        printf("argument %s\n", argv[i]);
    for (char **e = environ; *e; e++)
        printf("environment %s\n", *e);
    n: if (scanf("%511s", line) == 1) { printf("input %s\n", line); goto n; }
    return 0;
}
"""


@pytest.fixture(scope="module")
def tell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("tell"), "tell", TELL, "-Wno-unused", "-Wno-format-truncation")


def traced(program: Program, streams: Streams) -> None:
    with Tracee.start(program, streams) as tracee:
        tracee.resume()
        while tracee.wait(SECONDS).what is not What.ENDED:
            tracee.resume()


def plain(program: Program, streams: Streams) -> None:
    run_plain(program, streams)


# -- what a program starts with


@pytest.mark.parametrize("way", [traced, plain])
def test_a_program_starts_from_one_state_whoever_starts_it(
    way: Callable[[Program, Streams], None], tell: Path, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("some words")
    program = Program(
        argv=("name of its own", "a b", ""),
        executable=str(tell),
        cwd=str(tmp_path),
        stdin=str(tmp_path / "input"),
        env={"ONE": "1", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"},
    )
    read, write = os.pipe()
    os.set_inheritable(write, True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN})
    try:
        with streams_of() as streams:
            way(program, streams)
            said = streams.stdout.read_text().splitlines()
            named = streams
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN})
        signal.signal(signal.SIGHUP, before)
        os.close(read)
        os.close(write)
    append = os.O_WRONLY | os.O_APPEND
    assert [line for line in said if line.startswith("fd")] == [
        f"fd 0 {tmp_path}/input 0",
        f"fd 1 {named.stdout} {append}",
        f"fd 2 {named.stderr} {append}",
    ]
    masks = {line.split()[0]: int(line.split()[1], 16) for line in said if line.startswith("Sig") and "/" not in line}
    assert masks["SigBlk:"] == masks["SigIgn:"] == masks["SigPnd:"] == 0
    assert int(next(line for line in said if line.startswith("personality")).split()[1], 16) == ADDR_NO_RANDOMIZE
    assert f"cwd {tmp_path}" in said and "session 1" in said
    assert [line[9:] for line in said if line.startswith("argument")] == ["name of its own", "a b", ""]
    environment = dict(line[12:].split("=", 1) for line in said if line.startswith("environment"))
    assert environment == program.environment()
    assert environment["ONE"] == "1" and environment["LD_BIND_NOW"] == "1"
    tunables = environment["GLIBC_TUNABLES"].split(":")
    assert tunables[0] == "glibc.malloc.arena_max=1" and "glibc.pthread.rseq=0" in tunables
    assert "input some" in said and "input words" in said


def test_perls_tables_have_the_same_order_in_every_run() -> None:
    said = set()
    for _ in range(2):
        with streams_of() as streams:
            run_plain(
                program_of(Path("/usr/bin/perl"), "-e", "print join ' ', keys %{{map {$_ => 1} 1 .. 99}}"), streams
            )
            said.add(streams.stdout.read_text())
    assert len(said) == 1 and len(said.pop()) > 99


def test_a_seed_of_the_callers_own_is_kept() -> None:
    program = program_of(Path("/usr/bin/perl"))
    seeded = replace(program, env={**program.env, "PERL_HASH_SEED": "7"})
    assert [p.environment()["PERL_HASH_SEED"] for p in (program, seeded)] == ["0", "7"]
    wanted = replace(program, env={**program.env, "OMPI_MCA_ess_singleton_isolated": "0"})
    assert [p.environment()["OMPI_MCA_ess_singleton_isolated"] for p in (program, wanted)] == ["1", "0"]


def test_standard_streams_need_not_be_open_here(tell: Path, tmp_path: Path) -> None:
    """A daemon without descriptors 0 to 2: each lands on itself, and must not be closed by the exec."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from checkpoint.process.program import *; from checkpoint.process.plain_run import *\n"
        "for n in (0, 1, 2): os.close(n)\n"
        f"p = resolve_program([{str(tell)!r}], env={{}})\n"
        f"run_plain(p, Streams(Path({str(tmp_path / 'o')!r}), Path({str(tmp_path / 'e')!r})))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SECONDS)
    said = (tmp_path / "o").read_text()
    assert [line.split()[1] for line in said.splitlines() if line.startswith("fd")] == ["0", "1", "2"]


def test_addresses_repeat(builds: Path) -> None:
    def spaces() -> list[str]:
        with started(build("addrhash", builds)) as tracee:
            return [f"{e.start:x} {e.path}" for e in read_maps(tracee.pid) if "[v" not in e.path]

    assert spaces() == spaces()


def test_the_affinity_asked_for(tell: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    with streams_of() as streams, Tracee.start(program_of(tell), streams, cpu=cpu) as tracee:
        assert os.sched_getaffinity(tracee.pid) == {cpu}


def test_other_threads_take_no_event_away(tell: Path) -> None:
    """Such as one that draws a bar: a signal that comes between the look and the wait is offered to it."""
    done = threading.Event()
    others = [threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)]) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(6):
            begun = time.monotonic()
            with started(tell):
                assert time.monotonic() - begun < SECONDS / 2
    finally:
        done.set()
        for other in others:
            other.join()


# -- refusals


@pytest.mark.parametrize("kind", ["nointerpreter", "truncated"])
def test_what_execve_refuses(kind: str, tmp_path: Path) -> None:
    path = bad_file(kind, tmp_path)
    program = Program(argv=(str(path),), executable=str(path), cwd="/", env={})
    with streams_of() as streams, pytest.raises(ProbeError, match=str(path)):
        Tracee.start(program, streams)


def test_a_missing_library_is_told(builds: Path, tmp_path: Path) -> None:
    whole = build("farlib", builds)
    alone = tmp_path / "farlib"
    alone.write_bytes(whole.read_bytes())
    alone.chmod(0o755)
    with streams_of() as streams, pytest.raises(ProgramFailed, match="before its entry point"):
        Tracee.start(program_of(alone), streams)


ORPHAN = """
import os, signal, sys, time
from pathlib import Path
from checkpoint.process.program import Streams, fork_stopped, resolve_program
new_session = os.setsid
def late():
    time.sleep(0.5)  # until the parent is dead
    new_session()
os.setsid = late
pid = fork_stopped(resolve_program(["/bin/true"]), Streams(Path(sys.argv[1]), Path(sys.argv[2])), {}, None)
os.write(1, b"%d" % pid)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_whose_starter_is_killed_at_once_is_gone(tmp_path: Path) -> None:
    """It would wait, stopped, for somebody to let it go on."""
    words = [sys.executable, "-c", ORPHAN, str(tmp_path / "out"), str(tmp_path / "error")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == -signal.SIGKILL, done.stderr
    until, left = time.monotonic() + SECONDS, Path(f"/proc/{int(done.stdout)}")
    while left.exists() and time.monotonic() < until:
        time.sleep(0.05)
    if left.exists():
        os.kill(int(done.stdout), signal.SIGKILL)
        pytest.fail("it is still there")
