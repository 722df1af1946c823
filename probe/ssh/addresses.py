# SPDX-License-Identifier: Apache-2.0
"""Addresses of candidate nodes as users write them: one address, or a file of them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpoint.errors import ProbeError, StorageError

MAX_HOSTS_BYTES: Final = 1 << 20
"""Largest file of nodes that is read."""

# What OpenSSH allows in names that may become part of a ProxyCommand's shell line.
_HOST: Final = re.compile(r"[^\W_][\w.-]{0,254}")
_USER: Final = re.compile(r"[^\s\-'\"`$\\;&<>|(){},\x00-\x1f\x7f][^\s'\"`$\\;&<>|(){},\x00-\x1f\x7f]{0,254}")


@dataclass(frozen=True)
class Address:
    """A node as the user wrote it; without user or port, the ssh configuration has the say."""

    text: str
    """As written: names the node in messages and tables."""
    host: str
    """Name, alias of the ssh configuration, or IP address (without brackets)."""
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> Address:
    """`HOST`, `USER@HOST`, `HOST:PORT`, `[IPV6]:PORT` in any combination. Raises ProbeError for anything else."""
    text = text.strip()
    user, at, rest = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise ProbeError(f"{_shown(text)}: no user can have the name before the @; write USER@HOST:PORT")
    found = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?|([^\[\]:]*)(?::([^:]*))?", rest)
    if found is None:
        raise ProbeError(f"{_shown(text)}: not an address; write HOST, USER@HOST:PORT or, for IPv6, [ADDRESS]:PORT")
    inside, port, plain, plain_port = found.groups()
    if inside is not None:
        try:
            ipaddress.IPv6Address(inside)
        except ValueError:
            raise ProbeError(f"{_shown(text)}: what is in brackets is not an IPv6 address") from None
    elif not _HOST.fullmatch(plain):
        raise ProbeError(f"{_shown(text)}: no host can have that name; write HOST or USER@HOST:PORT")
    return Address(text, plain if inside is None else inside, user or None, _port(text, port or plain_port))


def read_hosts(path: Path) -> list[tuple[Address, ...]]:
    """Nodes of a file, one candidate per line; addresses joined by commas are nodes declared identical.

    Blank lines and what follows a `#` are skipped. Raises StorageError when the file cannot be read or is larger
    than `MAX_HOSTS_BYTES`, ProbeError with the line when it has anything but addresses, one twice, or none.
    """
    try:
        with path.open("rb") as stored:
            data = stored.read(MAX_HOSTS_BYTES + 1)
    except OSError as error:
        raise StorageError(f"{path}: the list of nodes cannot be read: {error.strerror}") from error
    if len(data) > MAX_HOSTS_BYTES:
        raise StorageError(f"{path}: larger than {MAX_HOSTS_BYTES} bytes; give a list of nodes, one per line")
    groups = []
    first_lines: dict[tuple[str, str | None, int | None], int] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        written = re.sub(r"(^|\s)#.*", "", line).strip()
        if not written:
            continue
        try:
            group = tuple(parse_address(part) for part in written.split(","))
        except ProbeError as error:
            raise ProbeError(f"{path}, line {number}: {error}") from None
        for address in group:
            first = first_lines.setdefault((address.host, address.user, address.port), number)
            if first != number or group.count(address) > 1:
                raise ProbeError(f"{path}, line {number}: {address.text} is listed already (line {first})")
        groups.append(group)
    if not groups:
        raise ProbeError(f"{path}: names no node; write one per line")
    return groups


def _port(text: str, digits: str | None) -> int | None:
    if digits is None:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 1 <= int(digits) <= 65535:
        raise ProbeError(f"{_shown(text)}: the port must be a number from 1 to 65535")
    return int(digits)


def _shown(text: str) -> str:
    """`text` as a message can quote it, whatever it holds."""
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
