# SPDX-License-Identifier: Apache-2.0
"""The real CRIU: found by version, run under a deadline, its true error quoted, fetched from the mirror."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoint.criu import private_copy as private_criu
from checkpoint.criu.private_copy import (
    AptSource,
    archive_source,
    fetch_private_criu,
    read_sources,
    suites_from,
)
from checkpoint.criu.tool import Criu, failure, find_criu, private_command, real_errors
from checkpoint.errors import CriuError, StorageError
from checkpoint.paths import HOME_VARIABLE, private_criu_dir
from checkpoint.run_command import run_group
from probe.doctor import diagnosis as doctor
from probe.doctor.checks import checks
from probe.doctor.diagnosis import run_doctor

DEADLINE = 60.0


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[int]:
    """A process CRIU can dump: its own session, no inherited descriptors, output to a file."""
    with (tmp_path / "output").open("ab") as output:
        process = subprocess.Popen(
            ["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_for(lambda: "sleep" in Path(f"/proc/{process.pid}/cmdline").read_text())
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "images"
    made.mkdir()
    return made


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited for 10 s"
        time.sleep(0.01)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_dump_leaves_the_process_stopped(sleeper: int, folder: Path) -> None:
    find_criu().dump(sleeper, folder, leave_stopped=True, timeout=DEADLINE)
    _wait_for(lambda: _state(sleeper) == "T")
    assert {f"core-{sleeper}.img", "inventory.img", "dump.log"} <= {p.name for p in folder.iterdir()}
    os.kill(sleeper, signal.SIGCONT)
    _wait_for(lambda: _state(sleeper) == "S")


def test_dump_without_leave_stopped_ends_the_process(sleeper: int, folder: Path) -> None:
    find_criu().dump(sleeper, folder, leave_stopped=False, timeout=DEADLINE)
    _wait_for(lambda: _state(sleeper) == "Z")


def test_a_dump_can_be_restored(sleeper: int, folder: Path) -> None:
    criu = find_criu()
    criu.dump(sleeper, folder, leave_stopped=False, timeout=DEADLINE)
    (folder / "timens-0.img").unlink(missing_ok=True)
    # The shell is PID 1 of the new namespace: CRIU cannot make siblings of itself when it is that one.
    script = f'"$@" && grep -l ^sleep /proc/{sleeper}/cmdline'
    restore = ["restore", "--no-default-config", "-d", "-S", "-D", str(folder), "-o", "restore.log", "-v2"]
    unshare = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    status, printed = run_group([*unshare, "sh", "-c", script, "sh", *criu.command, *restore], DEADLINE)
    assert (status, printed.strip()) == (0, f"/proc/{sleeper}/cmdline")


def test_a_missing_process_is_named(folder: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(CriuError, match=f"process {gone.pid} failed: Unable to interrupt.*No such process"):
        find_criu().dump(gone.pid, folder, leave_stopped=True, timeout=DEADLINE)


def test_the_error_of_a_connected_socket_is_quoted_not_the_first_line(folder: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        subprocess.Popen(
            ["sleep", "1000"],
            stdin=client,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            with pytest.raises(CriuError, match="Connected TCP socket") as caught:
                find_criu().dump(process.pid, folder, leave_stopped=True, timeout=DEADLINE)
        finally:
            process.kill()
    assert "FAILED" not in str(caught.value)


def test_a_full_disk_is_a_storage_error(sleeper: int, folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "probe-test", folder], check=True)
    try:
        with pytest.raises(StorageError, match="disk is full"):
            find_criu().dump(sleeper, folder, leave_stopped=True, timeout=DEADLINE)
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_deadline_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    slow = Criu(("sh", "-c", f"sleep 1000 & echo $! $$ > {pids}; wait"), (4, 1), "system")
    with pytest.raises(CriuError, match=r"criu check did not finish within 0\.5 s"):
        slow.run("check", [], timeout=0.5)
    # A killed grandchild stays a zombie until its new parent has seen it.
    for pid in pids.read_text().split():
        _wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists() or _state(int(pid)) == "Z")


def test_a_death_by_signal_is_named() -> None:
    assert "killed by SIGSEGV" in str(failure("criu dump", -signal.SIGSEGV, "", None))


LOG = """\
Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
Warn  (compel/arch/x86/src/lib/infect.c:418): Will restore 4884 with interrupted system call
Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.
Error (criu/cr-dump.c:1681): Dump files (pid: 4935) failed with -1
Error (criu/cr-dump.c:2111): Dumping FAILED.
"""


def test_the_cause_is_chosen_from_a_log() -> None:
    assert real_errors(LOG) == ["inet: Connected TCP socket, consider using --tcp-established option."]


def test_time_stamps_and_pids_in_front_of_a_line_are_passed_over() -> None:
    lines = [
        "(00.012345) pie: 12: Error (criu/pie/restorer.c:1): Can't map",
        "(00.02)  12: Error (criu/a.c:2): Late",
    ]
    assert real_errors("\n".join(lines)) == ["Can't map", "Late"]


def test_a_log_without_a_cause_still_gives_its_last_words() -> None:
    assert real_errors("Error (criu/cr-restore.c:2320): Restoring FAILED.\n") == ["Restoring FAILED."]


def _fake_criu(folder: Path, version: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / "criu"
    program.write_text(f"#!/bin/sh\necho Version: {version}\n")
    program.chmod(0o755)


def test_a_recent_system_criu_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_criu(tmp_path, "4.10.2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = find_criu()
    assert (found.command, found.version, found.origin) == ((str(tmp_path / "criu"),), (4, 10, 2), "system")


def test_an_old_system_criu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_criu(tmp_path, "3.17.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    with pytest.raises(CriuError, match=r"the system CRIU is 3\.17\.1; no private CRIU.*probe doctor --fix"):
        find_criu()


def test_a_private_criu_of_others_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would run as root."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    libraries, program = private_criu_dir() / "usr/lib/x86_64-linux-gnu", private_criu_dir() / "usr/sbin/criu"
    for path in (libraries / "ld-linux-x86-64.so.2", program):
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\necho Version: 4.1\n")
        path.chmod(0o755)
    assert find_criu().origin == "private"
    os.chown(private_criu_dir(), 65534, 65534)
    with pytest.raises(CriuError, match="belongs to somebody else, or others can write to it"):
        find_criu()


def test_the_private_criu_runs_under_its_own_loader(tmp_path: Path) -> None:
    assert private_command(tmp_path) is None
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    for path in (libraries / "ld-linux-x86-64.so.2", tmp_path / "usr/sbin/criu"):
        path.parent.mkdir(parents=True)
        path.touch()
    assert private_command(tmp_path) == (
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(tmp_path / "usr/sbin/criu"),
    )


@pytest.mark.slow
def test_the_doctor_fetches_a_working_criu_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "criu").write_text("#!/bin/sh\necho Version: 3.17.1\n")
    (tmp_path / "criu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    criu_only = [(name, check) for name, check in checks(tmp_path) if name == "criu"]
    monkeypatch.setattr(doctor, "checks", lambda folder: criu_only)
    assert run_doctor(fix=True) == 0
    printed = capsys.readouterr().out
    assert "`criu check` is content" in printed
    assert "mended criu: private CRIU 4." in printed
    assert [p.name for p in private_criu_dir().parent.iterdir()] == ["criu"]
    assert list(private_criu_dir().rglob("copyright"))
    before = private_criu_dir().stat()
    # Nothing is fetched where it is there.
    monkeypatch.setattr(private_criu, "_SOURCES", tmp_path / "none")
    criu = fetch_private_criu()
    criu.check()
    assert criu.version >= (4, 1) and criu.command[0].startswith(str(private_criu_dir()))
    assert private_criu_dir().stat() == before


def _local_source(etc: Path, uri: str) -> None:
    _, codename = private_criu._distribution()
    (etc / "sources.list.d").mkdir(parents=True)
    (etc / "sources.list").write_text(f"deb {uri} {codename} main\n")


def test_an_unsigned_archive_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, codename = private_criu._distribution()
    archive = tmp_path / "archive"
    for suite in suites_from(system, codename):
        packages = archive / "dists" / suite / "main/binary-amd64"
        packages.mkdir(parents=True)
        (packages / "Packages").write_text("")
        (archive / "dists" / suite / "Release").write_text(f"Codename: {suite}\nComponents: main\n")
    _local_source(tmp_path / "etc", f"file:{archive}")
    monkeypatch.setattr(private_criu, "_SOURCES", tmp_path / "etc")
    target = tmp_path / "data/criu"
    with pytest.raises(CriuError, match="is not signed"):
        fetch_private_criu(target)
    assert list(target.parent.iterdir()) == []


def test_a_mirror_without_criu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _local_source(tmp_path / "etc", f"file:{tmp_path}/nowhere")
    monkeypatch.setattr(private_criu, "_SOURCES", tmp_path / "etc")
    with pytest.raises(CriuError, match=rf"no suite of file:{tmp_path}/nowhere gave a CRIU >= 4\.1"):
        fetch_private_criu(tmp_path / "data/criu")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot install the private CRIU"):
        fetch_private_criu(tmp_path / "file/criu")


DEB822 = """\
# the release
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEabc
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://other.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


def test_sources_in_both_formats_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(DEB822)
    (parts / "debian.list").write_text("deb-src http://source.example/ bookworm main\n")
    (parts / "off.list.disabled").write_text("deb http://off.example/ bookworm main\n")
    (tmp_path / "sources.list").write_text(
        "# deb http://off.example/ bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://line.example/ bookworm main contrib # ours\n"
    )
    line, block = read_sources(tmp_path)
    assert line == AptSource("http://line.example/", ("bookworm",), ("main", "contrib"), "/k.gpg")
    assert block.uri == "http://mirror.example/debian"
    assert block.suites == ("bookworm", "bookworm-updates")
    assert block.signed_by.splitlines()[1:3] == [" -----BEGIN PGP PUBLIC KEY BLOCK-----", " ."]


def test_the_archive_of_the_own_release_is_chosen() -> None:
    security = AptSource("http://s.example/", ("bookworm-security",), ("main",), "/k")
    release = AptSource("http://r.example/", ("bookworm", "bookworm-updates"), ("main",), "/k")
    assert archive_source("debian", "bookworm", [security, release]) == release
    with pytest.raises(CriuError, match="no apt source of this machine serves 'trixie' main"):
        archive_source("debian", "trixie", [security, release])


@pytest.mark.parametrize(
    ("system", "codename", "first", "last"),
    [
        ("debian", "bookworm", "bookworm", "sid"),
        ("debian", "trixie", "trixie", "sid"),
        ("debian", "unheard-of", "unheard-of", "sid"),
        ("ubuntu", "noble", "noble", "devel"),
    ],
)
def test_suites_begin_with_the_own_one(system: str, codename: str, first: str, last: str) -> None:
    suites = suites_from(system, codename)
    assert (suites[0], suites[-1]) == (first, last)
    assert "bookworm" not in suites[1:]
