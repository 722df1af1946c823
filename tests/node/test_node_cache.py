# SPDX-License-Identifier: Apache-2.0
"""The folder on a node: what is kept in it, for how long, and folders that are of no use."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import Listening, assert_nothing_left, cache, guest, members, probed
from small_probe import SmallProbe, small_probe
from sshd import GUEST_UID, Machine, Server, machine

from checkpoint.errors import ProbeFileDamaged, StorageError
from probe.node.criu_member import unpack_criu
from probe.node.member_cache import ArrivingMembers, MemberCache, own_folder
from probe.node.run_folder import own_run
from reducer.member_table import Member


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Server]]:
    with machine(tmp_path_factory.mktemp("node") / "machine") as made:
        yield made, made.serve()


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


def mounted(made: Machine, name: str, options: str) -> Path:
    """A new file system of the guest's, as he sees it."""
    (made.folder / name).mkdir()
    options = f"uid={GUEST_UID},gid={GUEST_UID},mode=0700,{options}"
    made.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", f"/run/node/{name}"])
    return Path("/run/node") / name


# -- folders of no use


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("size=8k", "the agent cannot be stored: .*No space left"),
        ("size=2m", "the disk with /run/node/.*/members is full: [0-9]+ bytes .* to come, [0-9]+ are free; make room"),
        ("size=SOMEk", "No space left.*bytes are needed in /run/node/.*: make room"),
        ("ro", "the agent cannot be stored: .*Read-only file system.*choose another --cache-dir"),
    ],
)  # fmt: skip
def test_a_disk_that_takes_nothing_is_named(
    node: tuple[Machine, Server], small: SmallProbe, options: str, reason: str
) -> None:
    made, server = node
    # Enough for the probe, and not for what is in it.
    some = small.path.stat().st_size // 1024 + 1024
    folder = mounted(made, f"disk-{options}", options.replace("SOME", str(some)))
    (found,) = probed(made, small.path, guest(server), cache_dir=str(folder))
    assert isinstance(found.error, StorageError), found
    with pytest.raises(StorageError, match=reason):
        raise found.error
    assert_nothing_left(made, Path(f"/proc/{made._holder.pid}/root{folder}"))


def test_nothing_needs_to_be_executed_from_the_folder(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    folder = mounted(made, "noexec", "size=100m,noexec")
    (found,) = probed(made, small.path, guest(server), cache_dir=str(folder))
    assert found.result is not None, found.error
    assert_nothing_left(made)


def roots(made: Machine) -> str:
    made.run(["mkdir", "-m", "0755", "/tmp/roots"])
    return "/tmp/roots"


def shared(made: Machine) -> str:
    made.run(["mkdir", "/tmp/shared"])
    made.run(["chown", "guest:guest", "/tmp/shared"])
    made.run(["chmod", "0770", "/tmp/shared"])
    return "/tmp/shared"


def link_to_anothers(made: Machine) -> str:
    made.run(["mkdir", "-p", "-m", "0777", "/tmp/anybody"])
    made.run(["chmod", "0777", "/tmp/anybody"])
    made.run(["ln", "-s", "/tmp/anybody", "/tmp/link"])
    return "/tmp/link"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (roots, "Permission denied"),
        (shared, "belongs to somebody else, or others can write to it"),
        (link_to_anothers, "belongs to somebody else, or others can write to it"),
        (lambda _: "/etc/passwd", "Not a directory|File exists"),
        (lambda _: "~nobody-of-that-name/x/../../../../../proc/x", "cannot be stored"),
    ],
)
def test_a_folder_that_others_have_a_say_in_is_refused(
    node: tuple[Machine, Server], small: SmallProbe, make: Callable[[Machine], str], reason: str
) -> None:
    made, server = node
    (found,) = probed(made, small.path, guest(server), cache_dir=make(made))
    with pytest.raises(StorageError, match=reason):
        raise found.error or AssertionError("it was taken")
    # Least of all would anything be executed from there.
    assert not made.run(["find", "/tmp", "-name", "*.pyz"])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("~/my cache", "my cache"),
        ('~/it\'s "odd" $(touch x) `y` \\ ! ü * ;&|<>#\n%', 'it\'s "odd" $(touch x) `y` \\ ! ü * ;&|<>#\n%'),
        ("/home/guest/-n", "-n"),
    ],
)
def test_a_folder_may_have_any_name(node: tuple[Machine, Server], small: SmallProbe, given: str, meant: str) -> None:
    made, server = node
    (found,) = probed(made, small.path, guest(server), cache_dir=given)
    assert found.result is not None, found.error
    folder = made.folder / "home" / "guest" / meant
    assert list((folder / "members").iterdir()) and not list((folder / "runs").iterdir())
    assert not (made.folder / "home" / "guest" / "x").exists()


def test_a_link_of_ones_own_is_followed(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    home = made.folder / "home" / "guest"
    (home / "large").mkdir(mode=0o700)
    os.chown(home / "large", GUEST_UID, GUEST_UID)
    (home / "link").symlink_to("/home/guest/large")
    seen: list[str] = []
    watcher = Listening(lambda kind, _: seen.extend(made.users_processes().values()) if kind == "measured" else None)
    (found,) = probed(made, small.path, guest(server), cache_dir="~/link", watcher=lambda _: watcher)
    assert found.result is not None, found.error
    # Once: it may mean another folder later.
    assert any("/home/guest/large/agents/" in line for line in seen) and not any("/link" in line for line in seen)
    assert list((home / "large" / "members").iterdir())


def test_the_cache_keeps_to_its_size(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    shutil.rmtree(cache(made), ignore_errors=True)
    (found,) = probed(made, small.path, guest(server))
    assert found.result is not None and members(made)
    largest = max(path.stat().st_size for path in members(made).values())
    (found,) = probed(made, small.path, guest(server), cache_bytes=largest)
    assert found.result is not None
    assert 0 < sum(path.stat().st_size for path in members(made).values()) <= largest
    (found,) = probed(made, small.path, guest(server), cache_bytes=0)
    assert found.result is not None and not members(made)


# -- members


def member(data: bytes, name: str = "m") -> Member:
    return Member(name, len(data), len(data), hashlib.sha256(data).hexdigest(), "none", 0)


def put(held: MemberCache, data: bytes, offset: int = 0) -> bool:
    return held.receive(member(data), offset, lambda sink: sink(data[offset:]))


def test_what_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    held = MemberCache(tmp_path / "members")
    data = os.urandom(1000)
    wanted = member(data)

    def breaks(sink: Callable[[bytes], Any]) -> None:
        sink(data[:300])
        raise ConnectionError

    with pytest.raises(StorageError):
        held.receive(wanted, 0, breaks)
    assert held.begun(wanted) == 300 and not held.has(wanted)
    assert put(held, data, 300) and held.has(wanted) and held.begun(wanted) == 0
    assert [path.name for path in (tmp_path / "members").iterdir()] == [wanted.sha256]


def test_a_wrong_member_is_never_taken(tmp_path: Path) -> None:
    held = MemberCache(tmp_path / "members")
    data = b"right" * 100
    assert not held.receive(member(data), 0, lambda sink: sink(b"wrong" * 100))
    assert not held.has(member(data)) and not list((tmp_path / "members").iterdir())
    # Nor one whose beginning has gone since it was said to be here.
    assert not put(held, data, 100)
    assert not held.has(member(data)) and held.begun(member(data)) == 0
    assert put(held, data)
    with held.path(member(data)).open("r+b") as file:
        file.write(b"W")
    assert not held.has(member(data)) and not held.path(member(data)).exists()


def test_two_agents_may_receive_the_same_member(tmp_path: Path) -> None:
    held, other = (MemberCache(tmp_path / "members") for _ in range(2))
    data = os.urandom(1000)

    def meanwhile(sink: Callable[[bytes], Any]) -> None:
        sink(data[:500])
        assert put(other, data) and other.has(member(data))
        sink(data[500:])

    assert held.receive(member(data), 0, meanwhile) and held.has(member(data))
    assert [path.name for path in (tmp_path / "members").iterdir()] == [member(data).sha256]


def test_a_part_that_became_a_member_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening a part and locking it, another agent has finished it."""
    held = MemberCache(tmp_path / "members")
    data = os.urandom(1000)
    part = tmp_path / "members" / f"{member(data).sha256}.part"
    real, done = fcntl.flock, []

    def late(file: Any, how: int) -> None:
        if not done:
            done.append(True)
            part.write_bytes(data)
            part.replace(held.path(member(data)))
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    seen = []

    def looks(sink: Callable[[bytes], Any]) -> None:
        seen.append(held.path(member(data)).read_bytes() == data)
        sink(data)

    assert held.receive(member(data), 0, looks) and seen == [True] and held.has(member(data))


def test_trimming_takes_the_oldest_first_and_nothing_that_others_may_be_reading(tmp_path: Path) -> None:
    held = MemberCache(tmp_path / "members", 2500)
    stored = [os.urandom(1000) for _ in range(4)]
    for age, data in enumerate(stored):
        put(held, data)
        os.utime(held.path(member(data)), (0, time.time() - (4 - age) * 10_000))
    assert held.has(member(stored[0])), "which makes it the newest"
    held.trim()
    assert [held.path(member(data)).exists() for data in stored] == [True, False, False, True]
    held = MemberCache(tmp_path / "members", 0)
    held.trim()
    assert [held.path(member(data)).exists() for data in stored] == [True, False, False, False]
    held.trim(alone=True)
    assert not list((tmp_path / "members").iterdir())


def test_reading_a_member_waits_until_it_is_here(tmp_path: Path) -> None:
    held = MemberCache(tmp_path / "members")
    data = os.urandom(5000)
    source = ArrivingMembers(held)
    source.want(["m", "other"])
    timer = threading.Timer(0.2, lambda: (put(held, data), source.arrived("m")))
    timer.start()
    read = source.open(member(data))
    assert read(10_000) == data and read(10) == b"" and not source.all_here()
    timer.join()
    assert source.arrived("other") and source.all_here()
    source.wait()
    source.close()
    with pytest.raises(ProbeFileDamaged, match="was not asked for"):
        source.open(member(data, "third"))


def test_a_folder_must_be_ones_own(tmp_path: Path) -> None:
    for number, mode in enumerate([0o720, 0o702, 0o777]):
        folder = tmp_path / str(number)
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(StorageError, match="others can write to it"):
            own_folder(folder)
    anothers = tmp_path / "anothers"
    anothers.mkdir(mode=0o700)
    os.chown(anothers, 12345, 12345)
    with pytest.raises(StorageError, match="belongs to somebody else"):
        own_folder(anothers)
    assert own_folder(tmp_path / "new" / "one").stat().st_mode & 0o777 == 0o700


# -- folders of runs


def test_a_run_takes_away_what_dead_ones_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    seen: list[bool] = []
    with own_run(tmp_path) as first:
        (first.folder / "data").touch()
        first.when_alone(seen.append)
        dead = tmp_path / "runs" / "run-dead"
        (dead / "work").mkdir(parents=True)
        (tmp_path / "runs" / "run-unborn").mkdir()
        with own_run(tmp_path) as second:
            assert (first.folder / "data").exists() and not dead.exists()
            assert {path.name for path in (tmp_path / "runs").iterdir()} == {
                first.folder.parent.name, second.folder.parent.name,
            }  # fmt: skip
            first.when_alone(seen.append)
    assert seen == [True, False] and not list((tmp_path / "runs").iterdir())


# -- CRIU from the probe


class _Archive:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_data(self, _: str) -> bytes:
        return self._data


def tar(*entries: tuple[str, bytes | None, dict[str, Any]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for name, data, changes in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(data or b"")
            for key, value in changes.items():
                setattr(entry, key, value)
            made.addfile(entry, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def test_criu_is_unpacked_once(tmp_path: Path) -> None:
    packed = tar(("usr/sbin/criu", b"program", {"mode": 0o4777}), ("usr/lib/x/libc.so.6", b"library", {"mode": 0o644}))
    archive: Any = _Archive(packed)
    home = unpack_criu(archive, tmp_path)
    program, library = home / "data/criu/usr/sbin/criu", home / "data/criu/usr/lib/x/libc.so.6"
    assert program.read_bytes() == b"program" and library.read_bytes() == b"library"
    assert program.stat().st_mode & 0o7777 == 0o700 and library.stat().st_mode & 0o7777 == 0o600
    old = tmp_path / "criu" / "old"
    old.mkdir()
    os.utime(old, (0, 0))
    program.write_bytes(b"as it was")
    assert unpack_criu(archive, tmp_path) == home and program.read_bytes() == b"as it was"
    assert list((tmp_path / "criu").iterdir()) == [home]


@pytest.mark.parametrize(
    "entry",
    [
        ("link", None, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("link", None, {"type": tarfile.LNKTYPE, "linkname": "usr/sbin/criu"}),
        ("device", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("pipe", None, {"type": tarfile.FIFOTYPE}),
        ("folder", None, {"type": tarfile.DIRTYPE}),
        ("../outside", b"x", {}),
        ("usr/../../outside", b"x", {}),
        ("HERE/outside", b"x", {}),
        ("usr/sbin/criu", b"again", {}),
        ("usr/sbin/criu/below", b"x", {}),
        (".", b"x", {}),
    ],
)  # fmt: skip
def test_anything_but_plain_files_is_refused(tmp_path: Path, entry: tuple[str, bytes | None, dict[str, Any]]) -> None:
    name, *more = entry
    archive: Any = _Archive(tar(("usr/sbin/criu", b"program", {}), (name.replace("HERE", str(tmp_path)), *more)))
    with pytest.raises((ProbeFileDamaged, StorageError)):
        unpack_criu(archive, tmp_path / "node")
    assert not list((tmp_path / "node" / "criu").iterdir())
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize(
    "packed", [b"", b"\0" * 511, os.urandom(5000), tar(("a", b"x" * 5000, {}))[:3000]],
    # Equal in every worker.
    ids=["nothing", "half a block", "random", "cut off"],
)  # fmt: skip
def test_what_is_no_archive_is_refused(tmp_path: Path, packed: bytes) -> None:
    archive: Any = _Archive(packed)
    with pytest.raises(ProbeFileDamaged):
        unpack_criu(archive, tmp_path)
    assert not list((tmp_path / "criu").iterdir())


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path) -> None:
    archive: Any = _Archive(tar(*[(f"f{n}", b"", {}) for n in range(1001)]))
    with pytest.raises(ProbeFileDamaged, match="too large"):
        unpack_criu(archive, tmp_path)
    # It claims more than is there.
    large = bytearray(tar(("large", b"", {})))
    large[124:136] = b"77777777777\0"
    large[148:156] = b" " * 8
    large[148:156] = b"%06o\0 " % sum(large[:512])
    with pytest.raises(ProbeFileDamaged):
        unpack_criu(_Archive(bytes(large)), tmp_path)
    assert not list((tmp_path / "criu").iterdir())
