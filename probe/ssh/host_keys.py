# SPDX-License-Identifier: Apache-2.0
"""Decide whether a host's key is trusted, and tell the user what to do when it is not."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from checkpoint.errors import NodeUnreachable
from probe.ssh.config import DEFAULT_PORT, Settings
from probe.ssh.known_hosts import Entry, HostKey, add, entries_of, judge, known_name

_KEYSCAN_KINDS: Final = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}


def preferred_kinds(found: Settings, possible: Iterable[str]) -> tuple[str, ...]:
    """Signature algorithms in the order to ask for: those first by which the host is known, as ssh does."""
    known = {entry.key.kind for entry in _entries(found) if not entry.marker}
    return tuple(sorted(possible, key=lambda kind: ("ssh-rsa" if kind.startswith("rsa-") else kind) not in known))


def check_host_key(label: str, found: Settings, key: HostKey, *, accept_new: bool) -> str | None:
    """Raise NodeUnreachable, naming the host by `label`, unless its key is known.

    With `accept_new`, the key of a host that is not known is added; returns a note for the user then, else None.
    """
    name = known_name(found.key_name, found.key_port)
    shown = f"{key.kind} {key.fingerprint}"
    verdict = judge(_entries(found), key)
    if verdict.status == "unknown" and found.key_port != DEFAULT_PORT:
        # As ssh does: a key that is known for the host without a port is good for its other ports.
        same = judge(_entries(replace(found, key_port=DEFAULT_PORT)), key)
        if same.status in ("trusted", "revoked"):
            verdict = same
    if verdict.status == "trusted":
        return None
    entry = verdict.entry
    if verdict.status == "revoked" and entry:
        raise NodeUnreachable(
            f"{label}: its host key {shown} is revoked ({entry.place}); do not use this node before its "
            "administrator has given it a new one"
        )
    if verdict.status == "changed" and entry:
        raise NodeUnreachable(
            f"{label}: its host key is not the known one: it shows {shown}, {entry.place} has {entry.key.kind} "
            f"{entry.key.fingerprint}; somebody may be listening in between. If the node's administrator confirms "
            f"the new key, remove the old one with `ssh-keygen -R {shlex.quote(name)} -f "
            f"{shlex.quote(str(entry.path))}`"
        )
    if not accept_new:
        raise NodeUnreachable(f"{label}: {_unknown(found, name, key, entry)}")
    if not found.user_known_hosts:
        raise NodeUnreachable(
            f"{label}: its host key {shown} is new, and UserKnownHostsFile names no file to add it to; name one"
        )
    goal = found.user_known_hosts[0]
    add(goal, found.key_name, found.key_port, key, hashed=found.hash_known_hosts)
    return f"{label}: new host key {shown} of {name} accepted and added to {goal}"


def _entries(found: Settings) -> list[Entry]:
    return entries_of((*found.user_known_hosts, *found.global_known_hosts), found.key_name, found.key_port)


def _unknown(found: Settings, name: str, key: HostKey, authority: Entry | None) -> str:
    """What to say of a key that no file knows, and how to make it known."""
    goal = shlex.quote(str(found.user_known_hosts[0])) if found.user_known_hosts else "~/.ssh/known_hosts"
    kind = _KEYSCAN_KINDS.get(key.kind, "ecdsa")
    # ssh-keyscan takes no jumps, and writes the name that it was given.
    can_scan = not found.jumps and found.proxy_command is None and name == known_name(found.host, found.port)
    scan = f"add it with `ssh-keyscan -t {kind} -p {found.port} {shlex.quote(found.host)} >> {goal}`, or "
    useless = f" ({authority.place} names an authority, but host certificates are not supported)" if authority else ""
    return (
        f"the host key of {name}, {key.kind} {key.fingerprint}, is not known{useless}. Compare it with what the "
        f"node's administrator says (`ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` there), then "
        f"{scan if can_scan else ''}accept it with --accept-new-host-key"
    )
