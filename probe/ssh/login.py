# SPDX-License-Identifier: Apache-2.0
"""Logging in with keys: those of the agent and of files. Nothing is ever asked, so passwords have no place here."""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from probe.foreign_text import printable
from probe.ssh.config import Settings
from probe.ssh.paramiko_private import KeyAgent


class LoginRefused(Exception):
    """The node did not let the user in; the text says why, without naming the node, and what to do."""


@dataclass
class _Attempts:
    tried: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def log_in(transport: Any, settings: Settings, deadline: float) -> None:
    """Authenticate on a transport whose host key has been judged, before `deadline` (time.monotonic).

    Order of the keys as ssh has it: keys of the agent that the settings name, its other keys (unless
    IdentitiesOnly), files. Raises LoginRefused.
    """
    attempts = _Attempts()
    agent = _ask_agent(settings, deadline, attempts)
    try:
        for label, key in _keys(settings, agent.get_keys() if agent else (), attempts):
            transport.auth_timeout = max(0.1, deadline - time.monotonic())
            attempts.tried.append(label)
            try:
                more = transport.auth_publickey(settings.user, key)
            except paramiko.BadAuthenticationType as error:
                allowed = printable(", ".join(map(str, error.allowed_types)), 100)
                raise LoginRefused(
                    f"it lets {settings.user} in by {allowed or 'nothing'} only, not by keys; "
                    "set up a key for this user there"
                ) from error
            except (paramiko.SSHException, EOFError, OSError) as error:
                if time.monotonic() >= deadline:
                    raise LoginRefused("the login took too long; try later, or raise ConnectTimeout") from error
                if not transport.is_active():
                    raise LoginRefused(_cut_off(attempts, error)) from error
                continue
            if not more:
                return
            raise LoginRefused(
                f"besides a key it asks for {printable(', '.join(map(str, more)), 100)}, which cannot be given here; "
                "use a user or a node that a key is enough for"
            )
        raise LoginRefused(_none_accepted(settings, attempts, transport.get_banner()))
    finally:
        if agent:
            agent.close()


def _ask_agent(settings: Settings, deadline: float, attempts: _Attempts) -> KeyAgent | None:
    if settings.agent is None:
        return None
    try:
        return KeyAgent(settings.agent, max(0.1, deadline - time.monotonic()))
    except (OSError, paramiko.SSHException) as error:
        attempts.left_out.append(f"the agent at {settings.agent} does not answer ({error})")
        return None


def _keys(settings: Settings, held: Any, attempts: _Attempts) -> Iterator[tuple[str, Any]]:
    """Keys in the order in which they are tried, with what to call them. Files are opened when their turn comes."""
    by_blob = {key.asbytes(): key for key in held}
    from_files = []
    for path in settings.identities:
        key = by_blob.pop(_public_blob(path), None)
        if key is not None:
            yield f"{path} (agent)", key
        else:
            from_files.append(path)
    if not settings.identities_only:
        for key in by_blob.values():
            yield f"{printable(key.comment or key.get_name(), 60)} (agent)", key
    for path in from_files:
        if key := _read_private(path, attempts):
            yield str(path), key
            if key.public_blob is not None:
                # With a certificate beside it. Where that is not accepted the key itself may be.
                key.public_blob = None
                yield f"{path} (without its certificate)", key


def _public_blob(path: Path) -> bytes:
    """The public key that belongs to a file, which may be one itself; nothing when there is none."""
    for place in (path.with_name(f"{path.name}.pub"), path):
        try:
            with place.open("rb") as stored:
                words = stored.read(65536).split()
            if len(words) >= 2 and words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
                return base64.b64decode(words[1], validate=True)
        except (OSError, binascii.Error, ValueError):
            continue
    return b""


def _read_private(path: Path, attempts: _Attempts) -> Any:
    """A private key without a passphrase, or None with the reason noted; a missing usual file is no reason."""
    try:
        about = path.stat()
        if about.st_uid == os.getuid() and about.st_mode & 0o077:
            attempts.left_out.append(f"{path} can be read by others (chmod 600 it)")
            return None
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        if _public_blob(path):
            attempts.left_out.append(f"{path} is not there, and the agent does not hold it")
        return None
    except (paramiko.PasswordRequiredException, TypeError):
        attempts.left_out.append(f"{path} has a passphrase (give it to an agent: ssh-add {path})")
    except (paramiko.SSHException, paramiko.UnknownKeyType, UnsupportedAlgorithm, OSError, ValueError) as error:
        attempts.left_out.append(f"{path} is not a private key that can be used ({printable(str(error), 100)})")
    return None


def _none_accepted(settings: Settings, attempts: _Attempts, banner: bytes | str | None) -> str:
    left_out = f"; left out: {'; '.join(attempts.left_out)}" if attempts.left_out else ""
    said = f"; the node says: {printable(banner, 200)}" if banner else ""
    if not attempts.tried:
        return (
            f"there is no key to log in with as {settings.user}{left_out}{said}; "
            "name one with IdentityFile in the ssh configuration, or give one to an agent (ssh-add)"
        )
    return (
        f"it accepts none of the keys for {settings.user}: {', '.join(attempts.tried)}{left_out}{said}; "
        "check the user's name, and that the public key is in ~/.ssh/authorized_keys there"
    )


def _cut_off(attempts: _Attempts, error: BaseException) -> str:
    why = printable(str(error), 200) or type(error).__name__
    return f"it closed the connection during the login, at {attempts.tried[-1]} ({why}); " + (
        f"{len(attempts.tried)} keys may be too many for it: name the right one and set IdentitiesOnly"
        if len(attempts.tried) > 1
        else "look into the node's log"
    )
