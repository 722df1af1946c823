# SPDX-License-Identifier: Apache-2.0
"""SSH sessions with the hosts on the way to a node: reached, their keys judged, logged in to."""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass, replace
from typing import Any, Final

import paramiko

from checkpoint.errors import NodeUnreachable, ProbeError
from probe.foreign_text import printable
from probe.ssh.addresses import Address
from probe.ssh.config import Settings, settings
from probe.ssh.host_keys import check_host_key, preferred_kinds
from probe.ssh.interface import SshOptions
from probe.ssh.known_hosts import HostKey
from probe.ssh.login import LoginRefused, log_in
from probe.ssh.paramiko_private import Packetizer, Transport, bounded
from probe.ssh.streams import ProxyStream, Stream, dial

MAX_HOPS: Final = 8
CLOSE_SECONDS: Final = 2.0

_REKEY_SECONDS: Final = 60.0
_SHA1_KEYS: Final = ("ssh-rsa", "ssh-dss")
_DIGESTS: Final = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
# GCM first: one pass over the data instead of two.
_CIPHERS: Final = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")

# Its complaints would go to standard error otherwise, in the node's words.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass
class Session:
    """One host on the way that is logged in to."""

    settings: Settings
    stream: Stream
    transport: Any

    def close(self) -> None:
        _abandon(self.stream, self.transport)


def open_sessions(address: Address, options: SshOptions) -> tuple[list[Session], list[str]]:
    """Log in to a node and to the jump hosts before it. Returns the sessions, nearest first, and notes for the user.

    Raises NodeUnreachable, ProbeError for a configuration that cannot be honoured, StorageError.
    """
    sessions: list[Session] = []
    notes: list[str] = []
    try:
        _open(address, address, None, options, sessions, notes)
    except BaseException:
        for session in reversed(sessions):
            session.close()
        raise
    return sessions, notes


def reason(error: BaseException | None, stream: Stream | None = None) -> str:
    """Why a connection ended, in words; they may quote the node."""
    if stream is not None and stream.failure:
        return stream.failure
    if error is None or isinstance(error, EOFError):
        return "the other side closed it"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(text, 200) or type(error).__name__


def _open(
    node: Address,
    host: Address,
    jumps: tuple[Address, ...] | None,
    options: SshOptions,
    sessions: list[Session],
    notes: list[str],
    depth: int = 0,
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
    if jumps:
        # As with ssh -J a,b: the way to b is a, whatever the configuration says of b.
        found = replace(found, jumps=jumps, proxy_command=None)
    if found.jumps:
        if depth + len(found.jumps) > MAX_HOPS:
            raise ProbeError(f"{label}: more than {MAX_HOPS} jump hosts; do they name each other as ProxyJump?")
        *before, last = found.jumps
        _open(node, last, tuple(before) or None, options, sessions, notes, depth + 1)
    stream = _reach(label, found, sessions)
    transport = Transport(stream, packetizer_class=Packetizer)
    try:
        deadline = time.monotonic() + found.connect_seconds
        key = _greet(label, found, stream, transport, deadline)
        note = check_host_key(label, found, key, accept_new=options.accept_new_host_key)
        log_in(transport, found, deadline)
    except LoginRefused as error:
        _abandon(stream, transport)
        raise NodeUnreachable(f"{label}: {error}") from error
    except BaseException:
        _abandon(stream, transport)
        raise
    stream.trust()
    sessions.append(Session(found, stream, transport))
    if note:
        notes.append(note)


def _reach(label: str, found: Settings, sessions: list[Session]) -> Stream:
    """A way to the host's SSH server."""
    deadline = time.monotonic() + found.connect_seconds
    place = found.peer.rpartition("@")[2]
    try:
        if found.jumps:
            place += f" from {sessions[-1].settings.peer}"
            open_channel = sessions[-1].transport.open_channel
            goal, limit = (found.host, found.port), found.connect_seconds
            return Stream(bounded(open_channel("direct-tcpip", goal, ("127.0.0.1", 0), timeout=limit)))
        if found.proxy_command is not None:
            return ProxyStream(found.proxy_command)
        return dial(found.host, found.port, found.family, deadline, found.alive_seconds * found.alive_count)
    except socket.gaierror as error:
        raise NodeUnreachable(
            f"{label}: the name {found.host} is not known ({reason(error)}); correct it, or add it to the name server"
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
            f"{label}: {place} cannot be reached ({reason(error)}); check the name, the network and the way there"
        ) from error


def _greet(label: str, found: Settings, stream: Stream, transport: Transport, deadline: float) -> HostKey:
    """Exchange keys with the server. Returns its host key, which is not judged yet."""
    security = transport.get_security_options()
    transport.wanted_keys = preferred_kinds(found, [k for k in security.key_types if k not in _SHA1_KEYS])
    security.ciphers, security.digests = _CIPHERS, _DIGESTS
    transport.banner_timeout = max(0.1, deadline - time.monotonic())
    transport.clear_to_send_timeout = _REKEY_SECONDS
    try:
        transport.start_client(timeout=transport.banner_timeout)
        # The call before returns without a word when time is up, this one raises then.
        offered = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        late = time.monotonic() >= deadline
        _abandon(stream, transport)
        complaint = printable(stream.complaint(), 200)
        if late:
            raise NodeUnreachable(
                f"{label}: no SSH server answered at {found.peer} within {found.connect_seconds:g} s"
                f"{f' ({complaint})' if complaint else ''}; check the port, and that the node is not overloaded"
            ) from error
        raise NodeUnreachable(
            f"{label}: no SSH session could be opened with {found.peer} ({reason(error, stream)}"
            f"{f'; {complaint}' if complaint else ''}); check that sshd listens there"
        ) from error
    return HostKey(offered.get_name(), offered.asbytes())


def _abandon(stream: Stream, transport: Any) -> None:
    """Close both and wait for the transport's thread."""
    # Over a jump host that hangs, even closing has something to send.
    with stream.patience(CLOSE_SECONDS):
        transport.close()
        stream.close()
        if transport.ident is not None:
            transport.join(CLOSE_SECONDS)
