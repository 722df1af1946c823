# SPDX-License-Identifier: Apache-2.0
"""Descriptors that lead to the process itself, looked into: those of a copy of the test. They keep what they hold."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import strict_json
from checkpoint.capture import own_descriptors as looking
from checkpoint.capture.open_files import OpenFiles
from checkpoint.capture.own_descriptors import own_descriptors
from checkpoint.capture.stored_own import decoded_own, encoded_own
from checkpoint.state.own_descriptors import OwnDescriptors
from checkpoint.state.process_state import File, FileKind

SO_PEEK_OFF, IP_RECVERR = 42, 11
UDPLITE, MPTCP = (socket.SOCK_DGRAM, 136), (socket.SOCK_STREAM, 262)
PING, SCTP = (socket.SOCK_DGRAM, socket.IPPROTO_ICMP), (socket.SOCK_STREAM, 132)
MESSAGES = st.lists(st.binary(min_size=1, max_size=2000), max_size=8)


def seen() -> tuple[OwnDescriptors, dict[int, int]]:
    """What a copy of the test holds, and the file of each of its descriptors."""
    copy = os.fork()
    if not copy:
        signal.pause()
        os._exit(1)
    try:
        files = OpenFiles(copy)
        descriptors = tuple(files.descriptors())
        found = own_descriptors(copy, descriptors, files.files)
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
    assert decoded_own(strict_json.loads(strict_json.dumps(encoded_own(found)).encode())) == found
    return found, {item.fd: item.file_id for item in descriptors}


@contextlib.contextmanager
def pair(kind: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    with one, other:
        yield one, other


def udp() -> socket.socket:
    return socket.socket(type=socket.SOCK_DGRAM)


@contextlib.contextmanager
def made(kinds: Iterable[tuple[int, int, int]]) -> Iterator[list[int]]:
    """Descriptors of the sockets (family, type, protocol) that the kernel makes."""
    with contextlib.ExitStack() as kept:
        found = []
        for kind in kinds:
            with contextlib.suppress(OSError):
                found.append(kept.enter_context(socket.socket(*kind)).fileno())
        if not found:
            pytest.skip("the kernel makes no such socket")
        yield found


@settings(max_examples=40, deadline=None)
@given(messages=MESSAGES, kind=st.sampled_from([socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET]))
def test_messages_are_seen_and_stay(messages: Sequence[bytes], kind: int) -> None:
    with pair(kind) as (one, other):
        for message in messages:
            other.send(message)
        for _ in range(2):
            found, files = seen()
            held = found.messages.get(files[one.fileno()], ())
            if kind == socket.SOCK_STREAM:
                assert b"".join(part or b"" for part in held) == b"".join(messages)
            else:
                assert list(held) == list(messages)
        assert one.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF) == -1
        if kind == socket.SOCK_STREAM:
            assert one.recv(1 << 20, socket.MSG_DONTWAIT) == b"".join(messages) if messages else True
        else:
            assert [one.recv(4096) for _ in messages] == list(messages)


@settings(max_examples=20, deadline=None)
@given(data=st.binary(max_size=60000), pieces=st.integers(1, 16))
def test_pipes_are_seen_and_stay(data: bytes, pieces: int) -> None:
    source, sink = os.pipe()
    try:
        size = max(1, len(data) // pieces)
        for at in range(0, len(data), size):
            os.write(sink, data[at : at + size])
        found, files = seen()
        end = found.pipes[files[source]]
        assert found.contents[end.pipe].data == data
        assert found.contents[end.pipe].capacity == fcntl.fcntl(source, fcntl.F_GETPIPE_SZ)
        assert found.pipes[files[sink]].pipe == end.pipe
        os.set_blocking(source, False)
        assert not data or os.read(source, 1 << 20) == data
    finally:
        os.close(source)
        os.close(sink)


def written_end(*, read: bool, own: bool) -> tuple[File, File]:
    """The file of a pipe's end that a process writes to, and that of its standard error, which is the same. `read`:
    whether the pipe is read, `own`: by itself."""
    source, sink = os.pipe()
    process = subprocess.Popen(["sleep", "60"], stdout=sink, stderr=sink, pass_fds=[source] if own else [])
    os.close(sink)
    try:
        if own or not read:
            os.close(source)
        files = OpenFiles(process.pid)
        found = {item.fd: files.files[item.file_id] for item in files.descriptors()}
        assert own or not read or not select.select([source], [], [], 0)[0], "its end was opened and closed"
        return found[1], found[2]
    finally:
        if read and not own:
            os.close(source)
        process.kill()
        process.wait()


def test_what_another_process_reads_goes_nowhere() -> None:
    """No restored phase may be ended by SIGPIPE, or wait for a reader that is not there."""
    one, other = written_end(read=True, own=False)
    assert one is other and (one.path, one.kind) == ("/dev/null", FileKind.REGULAR)
    assert one.flags & os.O_ACCMODE == os.O_WRONLY and stat.S_ISCHR(one.mode)
    assert {file.kind for own in (False, True) for file in written_end(read=own, own=own)} == {FileKind.PIPE}


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_an_empty_message_is_seen_once_only(kind: int) -> None:
    with pair(kind) as (one, other):
        other.send(b"")
        found, files = seen()
        assert files[one.fileno()] not in found.known() and files[other.fileno()] in found.known()


def test_a_message_with_descriptors_is_told_apart() -> None:
    with pair(socket.SOCK_STREAM) as (one, other):
        before = len(list(Path("/proc/self/fd").iterdir()))
        other.sendmsg([b"take"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))])
        found, files = seen()
        assert found.messages[files[one.fileno()]] == (None,)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_sockets_with_options_of_their_own_are_told_apart() -> None:
    with pair(socket.SOCK_STREAM) as (plain, shut), pair(socket.SOCK_STREAM) as (hurried, other):
        shut.shutdown(socket.SHUT_WR)
        hurried.settimeout(None)
        hurried.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes([5]) + bytes(15))
        found, files = seen()
        said = [found.sockets[files[one.fileno()]] for one in (plain, shut, hurried, other)]
        assert [one.plain for one in said] == [False, False, False, True]
        assert said[0].peer == said[1].inode and said[1].peer == said[0].inode and all(one.nameless for one in said)


def test_a_named_socket_is_told_apart(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(tmp_path / "named"))
        listening.listen()
        client.connect(str(tmp_path / "named"))
        server, _ = listening.accept()
        with server:
            found, files = seen()
            # pytest-rerunfailures may listen too.
            ours = {files[one.fileno()] for one in (listening, client, server)}
            assert found.unconnected.keys() & ours == {files[listening.fileno()]}
            with socket.socket(socket.AF_UNIX) as waiting:
                waiting.connect(str(tmp_path / "named"))
                waited, files = seen()
                assert files[listening.fileno()] not in waited.known()
            assert not found.sockets[files[server.fileno()]].nameless


def test_a_socket_that_others_send_to_is_told_apart() -> None:
    """It has no peer of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one, socket.socket(socket.AF_UNIX, one.type) as other:
        one.bind("")
        found, files = seen()
        assert files[one.fileno()] in found.unconnected
        other.connect(one.getsockname())
        found, files = seen()
        assert files[one.fileno()] not in found.known()


def test_an_error_that_waits_is_told_apart() -> None:
    with udp() as gone:
        gone.bind(("127.0.0.1", 0))
        nobody = gone.getsockname()
    with udp() as one:
        one.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        one.sendto(b"letter", nobody)
        waiting = select.poll()
        waiting.register(one, select.POLLIN)
        assert waiting.poll(5000) == [(one.fileno(), select.POLLERR)]
        found, files = seen()
        assert files[one.fileno()] not in found.known()
        assert one.recvmsg(9, 512, socket.MSG_ERRQUEUE)[0] == b"letter"
        found, files = seen()
        assert files[one.fileno()] in found.unconnected


def test_sockets_of_other_protocols_are_not_described() -> None:
    """A kernel may lack any of them."""
    with made((socket.AF_INET, *kind) for kind in (MPTCP, UDPLITE, PING, SCTP)) as others, udp() as plain:
        found, files = seen()
        assert not {files[one] for one in others} & found.known()
        assert files[plain.fileno()] in found.known()


def test_sockets_that_name_no_address_are_not_described() -> None:
    """XDP, algorithms, KCM: their getsockname(2) fails. A kernel may lack any of them."""
    kinds = ((44, socket.SOCK_RAW, 0), (38, socket.SOCK_SEQPACKET, 0), (41, socket.SOCK_DGRAM, 0))
    with made(kinds) as others, udp() as plain:
        found, files = seen()
        assert not {files[one] for one in others} & found.known()
        assert files[plain.fileno()] in found.known()


@pytest.mark.parametrize("group", [False, True])
def test_who_gets_signals_is_told_apart(group: bool) -> None:
    source, sink = os.pipe()
    try:
        fcntl.fcntl(source, fcntl.F_SETOWN, -os.getpgrp() if group else os.getpid())
        found, files = seen()
        assert found.signalling == {files[source]}
    finally:
        os.close(source)
        os.close(sink)


def test_an_epoll_set_that_watches_another_file_of_that_number() -> None:
    source, sink = os.pipe()
    with select.epoll() as watching:
        watching.register(source, select.EPOLLIN)
        kept = os.dup(source)
        found, files = seen()
        assert [one.fd for one in found.sets[files[watching.fileno()]][1]] == [source]
        os.dup2(sink, source)
        found, files = seen()
        assert files[watching.fileno()] not in found.known()
        for number in (source, sink, kept):
            os.close(number)


def test_what_the_kernel_does_not_show_is_not_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.6, or where a filter forbids it; without kcmp(2) nothing is."""

    def refused(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(looking.os, "pidfd_open", refused)
    source, sink = os.pipe()
    with pair(socket.SOCK_STREAM) as (one, _), select.epoll() as watching:
        found, files = seen()
        assert not {files[source], files[sink], files[one.fileno()]} & found.known()
        assert files[watching.fileno()] in found.known()
        monkeypatch.setattr(looking, "call_number", lambda _: 1 << 20)
        assert not seen()[0].known()
    os.close(source)
    os.close(sink)


def test_a_timer_that_stands_has_counted_what_it_missed() -> None:
    """It expires once, and stands until somebody reads it: what is read then is what it was asked for before."""
    libc = ctypes.CDLL(None)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
    try:
        assert libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(0, 1_000_000, 0, 1_000_000), None) == 0
        time.sleep(0.1)
        found, of = seen()
        state = found.timers[of[timer]]
        assert state.ticking is not None and state.ticking.interval == (0, 1_000_000)
        assert 90 <= state.ticking.ticks <= int.from_bytes(os.read(timer, 8), "little")
        assert decoded_own(strict_json.loads(strict_json.dumps(encoded_own(found)))).timers == found.timers
        assert libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(), None) == 0
        found, of = seen()
        assert found.timers[of[timer]].ticking is None
    finally:
        os.close(timer)


def test_a_timer_made_of_wrong_numbers_is_refused() -> None:
    def decoded(*row: object) -> OwnDescriptors:
        return decoded_own({**encoded_own(OwnDescriptors()), "timers": [[3, 2, 1, *row]]})

    assert decoded(True).timers[3].ticking is None and decoded(False, 0, 5, 0, 7, 1, 0).timers[3].ticking is not None
    wrong = (0, 10**9, 0, 7, 1, 0), (0, 5, 0, 10**9, 1, 0), (0, 5, 0, 7, 1), 6 * (-1,), ()
    for row in [(True, 0, 5, 0, 7, 1, 0), *((False, *numbers) for numbers in wrong)]:
        with pytest.raises(ValueError):
            decoded(*row)
