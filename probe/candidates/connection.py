# SPDX-License-Identifier: Apache-2.0
"""A connection to a candidate node over SSH, and commands on it. Every wait ends."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import paramiko
from paramiko.buffered_pipe import BufferedPipe

from checkpoint.errors import NodeUnreachable, ProbeError
from probe.candidates import known_hosts
from probe.candidates.addresses import Address
from probe.candidates.known_hosts import HostKey
from probe.candidates.login import LoginRefused, log_in
from probe.candidates.remote_text import Tail, printable
from probe.candidates.ssh_config import DEFAULT_PORT, Settings, settings
from probe.candidates.streams import ProxyStream, Stream, dial

MAX_HOPS: Final = 8

_WINDOW_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 1 << 15
_MAX_PACKET_BYTES: Final = 1 << 18
_SLICE_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0
# One pass over the data instead of two, so first; only what both OpenSSH and paramiko take by themselves.
_CIPHERS: Final = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")

# Its complaints would go to standard error otherwise, in the node's words.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class SshOptions:
    """What the user said about SSH; the ssh configuration says the rest."""

    config: Path | None = None
    """ssh configuration; None is ~/.ssh/config, /dev/null is none."""
    known_hosts: Path | None = None
    """The only file of known host keys; None: what the configuration says, or the usual ones of user and system."""
    accept_new_host_key: bool = False
    """Add the key of a host that is not known yet, and say so. A key that differs from a known one never is taken."""
    identity: Path | None = None
    """Private key, for the node and its jump hosts; None: what the configuration says, or the usual ones."""
    connect_seconds: float = 20.0
    """For connecting, and for logging in, to each host on the way; ConnectTimeout of the configuration goes first."""


class RemoteCommandEnded(NodeUnreachable):
    """The command on the node ended, or the node closed it, while there was something to send to it."""


class _Transport(paramiko.Transport):  # type: ignore[misc]
    """An SSH transport that asks for the kinds of host key it is told, without certificates."""

    wanted_keys: tuple[str, ...] = ()

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.wanted_keys


class _Packetizer(paramiko.Packetizer):  # type: ignore[misc]
    """Packets of bounded size. The deadline of the handshake is kept by whoever waits for it, not by a thread."""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _MAX_PACKET_BYTES:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        return bytes(super().read_all(n, check_rekey))

    def start_handshake(self, timeout: float) -> None:
        pass


class _Inbox(BufferedPipe):  # type: ignore[misc]
    """What came and was not read yet: a node that does not keep to the window loses its connection."""

    def feed(self, data: bytes) -> None:
        if len(self) + len(data) > 2 * _WINDOW_BYTES:
            raise paramiko.SSHException("it sent more than was asked for")
        super().feed(data)


@dataclass
class _Session:
    """One host on the way that is logged in to."""

    settings: Settings
    stream: Stream
    transport: Any

    def close(self) -> None:
        # Over a jump host that hangs, even closing has something to send.
        with self.stream.patience(_CLOSE_SECONDS):
            self.transport.close()
            self.stream.close()
            if self.transport.ident is not None:
                self.transport.join(_CLOSE_SECONDS)


class Connection:
    """A node that the user is logged in to; made by `connect`. Closing it ends all channels and threads."""

    def __init__(self, address: Address, sessions: list[_Session], notes: list[str]) -> None:
        self._address = address
        self._sessions = sessions
        self._last = sessions[-1]
        self._channels: list[Channel] = []
        self._closing = threading.Event()
        self.peer = self._last.settings.peer
        """USER@HOST:PORT that the configuration made of the address."""
        self.notes = tuple(notes)
        """What the user should know, such as a host key that was added."""
        self._pulse = threading.Thread(target=self._ask_for_life, name=f"pulse of {address.text}", daemon=True)
        self._pulse.start()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, command: str) -> Channel:
        """Run a shell command on the node; no terminal, standard streams are the channel's. Raises NodeUnreachable."""
        limit = self._last.settings.connect_seconds
        transport = self._last.transport
        try:
            with self._last.stream.patience(limit):
                raw = transport.open_session(window_size=_WINDOW_BYTES, timeout=limit)
                raw.in_buffer, raw.in_stderr_buffer = _Inbox(), _Inbox()
                # paramiko waits for the answer as long as the connection lives.
                impatience = threading.Timer(limit, raw.close)
                impatience.daemon = True
                impatience.start()
                try:
                    raw.exec_command(command)
                finally:
                    impatience.cancel()
                    impatience.join()
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not transport.is_active():
                raise self.lost(error) from error
            raise NodeUnreachable(
                f"{self._address.text}: the node does not run commands ({_reason(error)}); "
                f"try `ssh {self._address.text} true`, and look into its log"
            ) from error
        channel = Channel(self, raw, self._last.stream)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        """End the connection; what was sent and not yet taken by the command may be lost. May be repeated."""
        self._closing.set()
        for session in reversed(self._sessions):
            session.close()
        for channel in self._channels:
            channel.close()
        self._pulse.join(_CLOSE_SECONDS)

    def check(self) -> None:
        """Raise NodeUnreachable when the connection is known to be lost, or nothing was heard for too long."""
        if not self._last.transport.is_active():
            raise self.lost(None)
        limit = self._last.settings.alive_seconds * self._last.settings.alive_count
        if time.monotonic() - self._last.stream.heard_at > limit:
            self._last.transport.close()
            raise self.lost(TimeoutError(f"it did not answer for {limit:g} s"))

    def lost(self, error: BaseException | None) -> NodeUnreachable:
        """The error to raise for a connection that ended by itself."""
        if self._closing.is_set():
            return NodeUnreachable(f"{self._address.text}: the connection is closed; connect again")
        error = self._last.transport.get_exception() or error
        return NodeUnreachable(
            f"{self._address.text}: the connection was lost ({_reason(error)}); "
            "check the node and the network, and run again"
        )

    def _ask_for_life(self) -> None:
        """Have the node answer something whenever it was silent: any answer will do, `heard_at` tells."""
        interval = self._last.settings.alive_seconds
        while not self._closing.wait(min(interval, 1.0)) and self._last.transport.is_active():
            if time.monotonic() - self._last.stream.heard_at >= interval:
                with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                    self._last.transport.global_request("keepalive@openssh.com", wait=True)


class Channel:
    """A command that runs on the node. One thread may send while another one receives. Times are in seconds."""

    def __init__(self, connection: Connection, raw: Any, stream: Stream) -> None:
        self._connection = connection
        self._raw = raw
        self._stream = stream
        self._tail = Tail()
        raw.settimeout(_SLICE_SECONDS)
        self._reader = threading.Thread(target=self._read_errors, name="standard error of a node", daemon=True)
        self._reader.start()

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: bytes, seconds: float) -> None:
        """Send all of `data` to the command's standard input.

        Raises NodeUnreachable after `seconds` without progress or when the connection is lost, RemoteCommandEnded
        when nobody reads any more.
        """
        offset = 0
        deadline = time.monotonic() + seconds
        with self._stream.patience(seconds):
            while offset < len(data):
                try:
                    sent = self._raw.send(data[offset : offset + _PIECE_BYTES])
                except TimeoutError:
                    self._connection.check()
                    if time.monotonic() >= deadline:
                        raise self._connection.lost(
                            TimeoutError(f"nothing more was taken from us for {seconds:g} s")
                        ) from None
                    continue
                except (paramiko.SSHException, EOFError, OSError) as error:
                    self._raise_ended(error)
                if not sent:
                    self._raise_ended(None)
                offset += sent
                deadline = time.monotonic() + seconds
        # Dropped in silence by paramiko when the connection ended meanwhile.
        self._connection.check()

    def end_of_input(self) -> None:
        """Close the command's standard input."""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            self._raw.shutdown_write()

    def receive(self, most: int, seconds: float) -> bytes | None:
        """At most `most` bytes of the command's output: b"" at its end, None when nothing came within `seconds`.

        Raises NodeUnreachable when the connection is lost, also when the end of the output is missing.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                data = bytes(self._raw.recv(most))
            except TimeoutError:
                self._connection.check()
                if time.monotonic() >= deadline:
                    return None
                continue
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise self._connection.lost(error) from error
            if not data and not self._raw.eof_received and self._dying():
                raise self._connection.lost(None)
            return data

    def errors(self) -> str:
        """The end of what the command wrote to standard error, printable; complete once it has ended."""
        if self._raw.eof_received or self._raw.closed:
            self._reader.join(_CLOSE_SECONDS)
        return self._tail.text()

    def exit_status(self, seconds: float) -> int | None:
        """The command's exit status; None when it has not ended within `seconds`, or was ended by a signal.

        Raises NodeUnreachable when the connection is lost before.
        """
        deadline = time.monotonic() + seconds
        while not self._raw.status_event.wait(_SLICE_SECONDS):
            self._connection.check()
            if time.monotonic() >= deadline:
                return None
        status = int(self._raw.exit_status)
        if status >= 0:
            return status
        if self._dying():
            raise self._connection.lost(None)
        return None

    def close(self) -> None:
        """Give the command up: its streams end; whether it does is its own affair. May be repeated."""
        with (
            self._stream.patience(_CLOSE_SECONDS),
            contextlib.suppress(paramiko.SSHException, EOFError, OSError),
        ):
            self._raw.close()
        self._reader.join(_CLOSE_SECONDS)

    def _read_errors(self) -> None:
        """Take standard error as it comes, so that the command never waits for us because of it."""
        while True:
            try:
                data = self._raw.recv_stderr(_PIECE_BYTES)
            except TimeoutError:
                continue
            except (paramiko.SSHException, EOFError, OSError):
                return
            if not data:
                return
            self._tail.add(data)

    def _dying(self) -> bool:
        """Whether the connection is lost. Channels are told first, so a closed one waits for what the thread does."""
        transport = self._raw.get_transport()
        transport.join(5 * _SLICE_SECONDS)
        return not transport.is_active()

    def _raise_ended(self, error: BaseException | None) -> None:
        if self._dying():
            raise self._connection.lost(error) from error
        said = self.errors().strip()
        raise RemoteCommandEnded(
            f"{self._connection.peer}: the command on the node ended before it had read everything"
            + (f"; it said: {said}" if said else "")
        ) from error


def connect(address: Address, options: SshOptions) -> Connection:
    """Connect to a node, through its jump hosts if it has any, check every host key, and log in.

    Raises NodeUnreachable with the reason and what to do, ProbeError for a configuration that cannot be honoured,
    StorageError for files that cannot be read.
    """
    sessions: list[_Session] = []
    notes: list[str] = []
    try:
        _open(address, address, None, options, sessions, notes)
        return Connection(address, sessions, notes)
    except BaseException:
        for session in reversed(sessions):
            session.close()
        raise


def _open(
    node: Address,
    host: Address,
    jumps: tuple[Address, ...] | None,
    options: SshOptions,
    sessions: list[_Session],
    notes: list[str],
) -> None:
    """Log in to `host`, on the way to `node`, by way of `jumps` (None: as configured), and add it to `sessions`."""
    label = node.text if host is node else f"{node.text}: jump host {host.text}"
    found = settings(
        host,
        options.config,
        known_hosts=options.known_hosts,
        identity=options.identity,
        connect_seconds=options.connect_seconds,
    )
    if jumps is None:
        jumps = found.jumps
    else:
        found = replace(found, jumps=jumps, proxy_command=None if jumps else found.proxy_command)
    if jumps:
        if len(sessions) + len(jumps) > MAX_HOPS:
            raise ProbeError(f"{label}: more than {MAX_HOPS} jump hosts; do they name each other as ProxyJump?")
        # A jump host's own ProxyJump counts for the first one alone.
        _open(node, jumps[-1], jumps[:-1] or None, options, sessions, notes)
    stream = _reach(label, found, sessions)
    transport = None
    try:
        deadline = time.monotonic() + found.connect_seconds
        transport = _greet(label, found, stream, deadline)
        _check_host_key(label, found, transport, options, notes)
        log_in(transport, found, deadline)
        stream.trust()
    except LoginRefused as error:
        _abandon(stream, transport)
        raise NodeUnreachable(f"{label}: {error}") from error
    except BaseException:
        _abandon(stream, transport)
        raise
    sessions.append(_Session(found, stream, transport))


def _reach(label: str, found: Settings, sessions: list[_Session]) -> Stream:
    """A way to the host's SSH server."""
    deadline = time.monotonic() + found.connect_seconds
    place = found.peer.rpartition("@")[2]
    try:
        if found.jumps:
            via = sessions[-1].transport.open_channel(
                "direct-tcpip", (found.host, found.port), ("127.0.0.1", 0), timeout=found.connect_seconds
            )
            via.in_buffer = _Inbox()
            return Stream(via)
        if found.proxy_command is not None:
            return ProxyStream(found.proxy_command)
        return dial(found.host, found.port, found.family, deadline, found.alive_seconds * found.alive_count)
    except socket.gaierror as error:
        raise NodeUnreachable(
            f"{label}: the name {found.host} is not known ({_reason(error)}); correct it, or add it to the name server"
        ) from error
    except ConnectionRefusedError as error:
        raise NodeUnreachable(
            f"{label}: {place} refuses connections; check that sshd runs there, and its port"
        ) from error
    except TimeoutError as error:
        raise NodeUnreachable(
            f"{label}: {place} did not answer within {found.connect_seconds:g} s; check that the node is up, "
            "and that no firewall is in between"
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise NodeUnreachable(
            f"{label}: {place} cannot be reached ({_reason(error)}); check the name, the network and the way there"
        ) from error


def _greet(label: str, found: Settings, stream: Stream, deadline: float) -> Any:
    """Exchange keys with the server. Returns the transport, its host key not judged yet."""
    transport = _Transport(stream, packetizer_class=_Packetizer)
    transport.daemon = True
    transport.wanted_keys = _wanted_keys(found)
    transport.get_security_options().ciphers = _CIPHERS
    left = max(0.1, deadline - time.monotonic())
    transport.banner_timeout = left
    transport.clear_to_send_timeout = 60.0
    try:
        transport.start_client(timeout=left)
        # Returns without a word when time is up.
        transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        late = time.monotonic() >= deadline
        _abandon(stream, transport)
        complaint = stream.complaint()
        if late:
            raise NodeUnreachable(
                f"{label}: {found.peer} took the connection, but no SSH server answered within "
                f"{found.connect_seconds:g} s; check the port, and that the node is not overloaded"
                + (f" ({printable(complaint)})" if complaint else "")
            ) from error
        raise NodeUnreachable(
            f"{label}: no SSH session could be opened with {found.peer} ({_reason(error)}"
            + (f"; {printable(complaint)}" if complaint else "")
            + "); check that sshd listens there"
        ) from error
    return transport


def _wanted_keys(found: Settings) -> tuple[str, ...]:
    """Kinds of host key to ask for: those first by which the host is known, as ssh does."""
    entries = _entries(found)
    known = {entry.key.kind for entry in entries if not entry.marker}
    usual = tuple(k for k in _Transport._preferred_keys if k in _Transport._key_info)
    return tuple(sorted(usual, key=lambda kind: ("ssh-rsa" if kind.startswith("rsa-") else kind) not in known))


def _entries(found: Settings) -> list[known_hosts.Entry]:
    return known_hosts.entries_of((*found.user_known_hosts, *found.global_known_hosts), found.key_name, found.key_port)


def _check_host_key(label: str, found: Settings, transport: Any, options: SshOptions, notes: list[str]) -> None:
    """Raise NodeUnreachable unless the host's key is known, or new and the user wants to accept new ones."""
    offered = transport.get_remote_server_key()
    key = HostKey(offered.get_name(), offered.asbytes())
    name = known_hosts.known_name(found.key_name, found.key_port)
    verdict = known_hosts.judge(_entries(found), key)
    if verdict.status == "unknown" and found.key_port != DEFAULT_PORT:
        # As ssh does: a key that is known for the host without a port is good for its other ports.
        bare = replace(found, key_port=DEFAULT_PORT)
        same = known_hosts.judge(_entries(bare), key)
        if same.status in ("trusted", "revoked"):
            verdict = same
    if verdict.status == "trusted":
        return
    shown = f"{key.kind} {key.fingerprint}"
    if verdict.status == "revoked" and verdict.entry:
        raise NodeUnreachable(
            f"{label}: its host key {shown} is revoked ({verdict.entry.place}); do not use this node before its "
            "administrator has given it a new one"
        )
    if verdict.status == "changed" and verdict.entry:
        raise NodeUnreachable(
            f"{label}: its host key is not the known one: it shows {shown}, {verdict.entry.place} has "
            f"{verdict.entry.key.kind} {verdict.entry.key.fingerprint}. Somebody may be listening in between. If the "
            "node's administrator confirms the new key, remove the old one with "
            f"`ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(str(verdict.entry.path))}`"
        )
    if not options.accept_new_host_key:
        raise NodeUnreachable(f"{label}: {_unknown(found, name, shown, verdict.entry)}")
    if not found.user_known_hosts:
        raise NodeUnreachable(
            f"{label}: its host key {shown} is new, and UserKnownHostsFile names no file to add it to; name one"
        )
    goal = found.user_known_hosts[0]
    known_hosts.add(goal, found.key_name, found.key_port, key, hashed=found.hash_known_hosts)
    notes.append(f"{label}: new host key {shown} of {name} accepted and added to {goal}")


def _unknown(found: Settings, name: str, shown: str, authority: known_hosts.Entry | None) -> str:
    """What to say of a key that no file knows, and how to make it known."""
    goal = shlex.quote(str(found.user_known_hosts[0] if found.user_known_hosts else "~/.ssh/known_hosts"))
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(shown.split()[0], "ecdsa")
    direct = not found.jumps and found.proxy_command is None and name == known_hosts.known_name(found.host, found.port)
    scan = f"`ssh-keyscan -t {kind} -p {found.port} {shlex.quote(found.host)} >> {goal}`"
    useless = f" ({authority.place} names an authority; host certificates are not supported)" if authority else ""
    return (
        f"its host key {shown} of {name} is not known{useless}. Compare it with what the node's administrator says "
        f"(`ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` there), then "
        + (f"add it with {scan}, or accept it" if direct else "accept it")
        + " with --accept-new-host-key"
    )


def _abandon(stream: Stream, transport: Any) -> None:
    with stream.patience(_CLOSE_SECONDS):
        if transport is not None:
            transport.close()
        stream.close()
        if transport is not None and transport.ident is not None:
            transport.join(_CLOSE_SECONDS)


def _reason(error: BaseException | None) -> str:
    """The reason of a low-level error, in words; it may quote the node."""
    if error is None or isinstance(error, EOFError):
        return "the other side closed it"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(text, 200) or type(error).__name__
