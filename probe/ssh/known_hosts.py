# SPDX-License-Identifier: Apache-2.0
"""Known host keys, as OpenSSH keeps them (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): looking up and adding.

The files are read here and not by paramiko because it skips the markers @revoked and @cert-authority as well as
patterns, and cannot say which line a key stands in.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from checkpoint.errors import StorageError

_DEFAULT_PORT: Final = 22
_MAX_FILE_BYTES: Final = 64 << 20
_SALT_BYTES: Final = 20


@dataclass(frozen=True)
class HostKey:
    """A host's public key."""

    kind: str
    """Such as ssh-ed25519."""
    blob: bytes
    """The key in the encoding of RFC 4253, section 6.6."""

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Entry:
    """One line of a file that is about the host looked for."""

    path: Path
    line: int
    marker: Literal["", "@revoked", "@cert-authority"]
    key: HostKey

    @property
    def place(self) -> str:
        return f"{self.path}, line {self.line}"


@dataclass(frozen=True)
class Verdict:
    """What the files say about a key."""

    status: Literal["trusted", "unknown", "changed", "revoked"]
    entry: Entry | None
    """The line that decided; for an unknown key, the certificate authority that could not be used, if any."""


def entries_of(paths: Iterable[Path], name: str, port: int = _DEFAULT_PORT) -> list[Entry]:
    """Lines about this host, in order. Files that are missing are empty; others that cannot be read StorageError."""
    wanted = known_name(name, port)
    found = []
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            entry = _entry(path, number, line, wanted)
            if entry:
                found.append(entry)
    return found


def judge(entries: Iterable[Entry], key: HostKey) -> Verdict:
    """What the lines about a host say about the key that it offers.

    Revoked goes before trusted. A host known by other keys alone, of whatever kind, has changed: taking it for
    unknown would let a forger through who offers a kind that has not been seen yet.
    """
    listed = list(entries)
    for entry in listed:
        if entry.marker == "@revoked" and entry.key == key:
            return Verdict("revoked", entry)
    plain = [e for e in listed if not e.marker]
    for entry in plain:
        if entry.key == key:
            return Verdict("trusted", entry)
    if plain:
        return Verdict("changed", next((e for e in plain if e.key.kind == key.kind), plain[0]))
    return Verdict("unknown", next((e for e in listed if e.marker == "@cert-authority"), None))


def add(path: Path, name: str, port: int, key: HostKey, *, hashed: bool) -> None:
    """Append a key to a file, which is made if need be; with `hashed`, names are not readable. Raises StorageError."""
    known = known_name(name, port)
    shown = _hash(known, os.urandom(_SALT_BYTES)) if hashed else known
    line = f"{shown} {key.kind} {base64.b64encode(key.blob).decode()}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Several nodes are met at once, by several probers perhaps.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (b"\n" if unfinished else b"") + line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"{path}: the new host key cannot be added: {error.strerror}") from error


def known_name(name: str, port: int) -> str:
    """How the files name a host at a port."""
    return name.lower() if port == _DEFAULT_PORT else f"[{name.lower()}]:{port}"


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as stored:
            data = stored.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: the known host keys cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise StorageError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; known host keys are expected there")
    return data.decode(errors="replace").split("\n")


def _entry(path: Path, number: int, line: str, wanted: str) -> Entry | None:
    words = line.split()
    marker: Literal["", "@revoked", "@cert-authority"] = ""
    if words and words[0] == "@revoked":
        marker = "@revoked"
    elif words and words[0] == "@cert-authority":
        marker = "@cert-authority"
    if marker:
        words = words[1:]
    if len(words) < 3 or words[0].startswith("#") or not _names(words[0], wanted):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return Entry(path, number, marker, HostKey(words[1], blob))


def _names(field: str, wanted: str) -> bool:
    """Whether the first field of a line is about `wanted`: hashed, or patterns with * ? and ! between commas."""
    if field.startswith("|1|"):
        try:
            salt = base64.b64decode(field.split("|")[2], validate=True)
        except (binascii.Error, ValueError, IndexError):
            return False
        return hmac.compare_digest(_hash(wanted, salt), field)
    matched = False
    for pattern in field.lower().split(","):
        # Brackets around a host with a port are not a set of characters.
        plain = re.sub(r"\[", "[[]", pattern.removeprefix("!"))
        if fnmatch.fnmatchcase(wanted, plain):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _hash(name: str, salt: bytes) -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
