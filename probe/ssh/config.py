# SPDX-License-Identifier: Apache-2.0
"""Settings for one node from the user's ssh configuration (ssh_config(5)); what cannot be honoured safely is refused.

paramiko reads the format. What it would skip or mistake is settled here: Include, Match criteria that it does not
know, tokens, the precedence of what stands in the address, and options that would be missed where they matter.
"""

from __future__ import annotations

import getpass
import io
import os
import re
import shlex
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import paramiko

from checkpoint.errors import ProbeError, StorageError
from probe.ssh.addresses import Address, parse_address
from probe.ssh.paramiko_private import ConfigReader

DEFAULT_PORT: Final = 22
ALIVE_SECONDS: Final = 15.0
ALIVE_COUNT: Final = 3

_DEFAULT_IDENTITIES: Final = ("id_rsa", "id_ecdsa", "id_ed25519")
_MAX_FILE_BYTES: Final = 4 << 20
_MAX_INCLUDES: Final = 16
_MATCH_CRITERIA: Final = frozenset(("all", "host", "originalhost", "user", "localuser"))

REFUSED: Final = {
    "BindAddress": (), "BindInterface": (), "CanonicalizeHostname": ("no", "none"), "CASignatureAlgorithms": (),
    "CertificateFile": (), "Ciphers": (), "HostKeyAlgorithms": (), "KexAlgorithms": (),
    "KnownHostsCommand": ("none",), "MACs": (), "PKCS11Provider": ("none",), "ProxyUseFdpass": ("no",),
    "PubkeyAcceptedAlgorithms": (), "PubkeyAcceptedKeyTypes": (),
    "PubkeyAuthentication": ("yes", "unbound", "host-bound"), "RequiredRSASize": (), "RevokedHostKeys": ("none",),
}  # fmt: skip
"""Options about whom to trust, how to encrypt, which way to take or how to log in: the values that do no harm."""


@dataclass(frozen=True)
class Settings:
    """How one node, or one jump host, is reached and logged in to. Times are in seconds."""

    host: str
    port: int
    user: str
    key_name: str
    """Name and port that the host's key is known by."""
    key_port: int
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    hash_known_hosts: bool
    identities: tuple[Path, ...]
    """Files of private keys, most wanted first; those that are merely usual may be missing."""
    identities_only: bool
    agent: str | None
    """Socket of the agent, None for none."""
    jumps: tuple[Address, ...]
    """Hosts on the way, nearest first."""
    proxy_command: str | None
    connect_seconds: float
    alive_seconds: float
    alive_count: int
    family: int

    @property
    def peer(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


def settings(
    address: Address,
    config: Path | None,
    *,
    known_hosts: Path | None = None,
    identity: Path | None = None,
    connect_seconds: float = 20.0,
) -> Settings:
    """How to reach a node. `config` None: ~/.ssh/config if there is one.

    `known_hosts` and `identity` take the place of what the configuration says; `connect_seconds` does not.
    Raises ProbeError for what the configuration asks and this tool does not do where that would be less safe or
    would lead elsewhere, StorageError when a file cannot be read.
    """
    found = _look_up(address, config)
    for option, harmless in REFUSED.items():
        if found.get(option.lower(), "").lower() not in ("", *harmless):
            raise ProbeError(_unsupported(address.text, option))
    name = address.host
    host = found.get("hostname", name)
    if host != name:
        host = _expand(address, "HostName", host, {"h": name})
    user = found.get("user", "") or _local_user()
    if not user:
        raise ProbeError(f"{address.text}: this process's user has no name; write USER@{name}")
    port = _number(address, "Port", found.get("port", str(DEFAULT_PORT)), 1, 65535)
    tokens = {"h": host, "n": name, "p": str(port), "r": user, "u": _local_user(), "d": str(Path.home())}
    alias = found.get("hostkeyalias", "")
    tokens["k"] = alias or name
    jumps, command = _way(address, found, tokens)
    if known_hosts:
        user_files: tuple[Path, ...] = (known_hosts,)
        global_files: tuple[Path, ...] = ()
    else:
        user_files = _files(address, found, "UserKnownHostsFile", "~/.ssh/known_hosts ~/.ssh/known_hosts2", tokens)
        usual = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
        global_files = _files(address, found, "GlobalKnownHostsFile", usual, tokens)
    alive = _seconds(address, "ServerAliveInterval", found.get("serveraliveinterval", "0"))
    count = _number(address, "ServerAliveCountMax", found.get("serveralivecountmax", str(ALIVE_COUNT)), 1, 1000)
    return Settings(
        host=host,
        port=port,
        user=user,
        key_name=alias or host,
        key_port=DEFAULT_PORT if alias else port,
        user_known_hosts=user_files,
        global_known_hosts=global_files,
        hash_known_hosts=_yes(found, "hashknownhosts"),
        identities=_identities(address, found, identity, tokens),
        identities_only=_yes(found, "identitiesonly"),
        agent=_agent(address, found, tokens),
        jumps=jumps,
        proxy_command=command,
        connect_seconds=_seconds(address, "ConnectTimeout", found.get("connecttimeout", "0")) or connect_seconds,
        alive_seconds=alive or ALIVE_SECONDS,
        alive_count=count,
        family={"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(
            found.get("addressfamily", "any").lower(), socket.AF_UNSPEC
        ),
    )


def _look_up(address: Address, config: Path | None) -> dict[str, Any]:
    """Options that apply, by name in small letters, in the order in which they were met."""
    path = Path.home() / ".ssh" / "config" if config is None else config
    lines = list(_lines(path, must_exist=config is not None))
    # The first value counts, and what the address says goes before any file.
    first = ([f"User {address.user}"] if address.user else []) + ([f"Port {address.port}"] if address.port else [])
    reader = ConfigReader()
    try:
        reader.parse(io.StringIO("\n".join([*first, *lines])))
        return reader.lookup(address.host)
    except (paramiko.ConfigParseError, ValueError) as error:
        raise ProbeError(f"{path}: {error}; correct the file, or name another one") from error
    except (KeyError, OSError) as error:
        raise ProbeError(f"{path}: Match needs the name of this process's user, which has none") from error


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _lines(path: Path, *, must_exist: bool, depth: int = 0) -> Iterator[str]:
    """Lines of a configuration with those of the files that it includes. Refuses what would be misunderstood."""
    if depth > _MAX_INCLUDES:
        raise ProbeError(f"{path}: files include each other more than {_MAX_INCLUDES} deep")
    inside_block = False
    for number, line in enumerate(_read(path, must_exist=must_exist), 1):
        keyword, _, rest = re.sub(r"^\s*(\w+)\s*=?\s*", r"\1 ", line).strip().partition(" ")
        keyword = keyword.lower()
        if keyword == "include":
            if inside_block:
                raise ProbeError(
                    f"{path}, line {number}: Include inside a Host or Match block is not supported; "
                    "move it to the top of the file"
                )
            for included in _included(path, number, rest):
                yield from _lines(included, must_exist=True, depth=depth + 1)
                yield "Host *"
            continue
        inside_block = inside_block or keyword in ("host", "match")
        yield _match(path, number, rest) if keyword == "match" else line


def _read(path: Path, *, must_exist: bool) -> list[str]:
    try:
        # A device such as /dev/null is a configuration without anything.
        with path.expanduser().open("rb") as stored:
            about = os.fstat(stored.fileno())
            data = stored.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if must_exist:
            raise StorageError(f"{path}: no such ssh configuration") from None
        return []
    except OSError as error:
        raise StorageError(f"{path}: the ssh configuration cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise StorageError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; an ssh configuration is expected there")
    if stat.S_ISREG(about.st_mode) and (about.st_uid not in (0, os.getuid()) or about.st_mode & 0o022):
        # It says whom to trust and which commands to run.
        raise StorageError(f"{path}: others can change it; it must belong to you, and chmod go-w it")
    return data.decode(errors="replace").splitlines()


def _included(path: Path, number: int, patterns: str) -> Iterator[Path]:
    try:
        words = shlex.split(patterns)
    except ValueError as error:
        raise ProbeError(f"{path}, line {number}: {error}") from None
    for word in words:
        full = Path(word).expanduser()
        # Relative to the user's folder, whatever file it stands in: ssh_config(5).
        base = full if full.is_absolute() else Path.home() / ".ssh" / full
        yield from sorted(p for p in Path("/").glob(str(base).lstrip("/")) if p.is_file())


def _match(path: Path, number: int, criteria: str) -> str:
    """The line in the form that paramiko reads; it would take criteria that it does not know for fulfilled."""
    try:
        words = shlex.split(criteria)
    except ValueError as error:
        raise ProbeError(f"{path}, line {number}: {error}") from None
    line = ["Match"]
    while words:
        word = words.pop(0).lower()
        if word.removeprefix("!") not in _MATCH_CRITERIA:
            raise ProbeError(
                f"{path}, line {number}: `Match {word}` is not supported; "
                "give a configuration without it, or write the block with Host"
            )
        line.append(word)
        if word != "all":
            line += [shlex.quote(w) for w in words[:1]]
            words = words[1:]
    return " ".join(line)


def _way(address: Address, found: dict[str, Any], tokens: dict[str, str]) -> tuple[tuple[Address, ...], str | None]:
    """Jump hosts or command: whichever option was met first counts."""
    for key, value in found.items():
        if key == "proxycommand":
            return (), None if value is None else _expand(address, "ProxyCommand", value, tokens)
        if key == "proxyjump":
            if value.lower() == "none":
                return (), None
            hops = tuple(_hop(part) for part in _expand(address, "ProxyJump", value, tokens).split(","))
            # `Host *` with a ProxyJump is about the jump host too, which is reached without itself.
            return () if any(hop.host == address.host for hop in hops) else hops, None
    return (), None


def _hop(text: str) -> Address:
    return parse_address(text.strip().removeprefix("ssh://"))


def _identities(
    address: Address, found: dict[str, Any], identity: Path | None, tokens: dict[str, str]
) -> tuple[Path, ...]:
    if identity:
        return (identity.expanduser(),)
    named = found.get("identityfile")
    if not named:
        return tuple(Path.home() / ".ssh" / name for name in _DEFAULT_IDENTITIES)
    return tuple(_path(address, "IdentityFile", n, tokens) for n in named if n.lower() != "none")


def _agent(address: Address, found: dict[str, Any], tokens: dict[str, str]) -> str | None:
    named = found.get("identityagent", "SSH_AUTH_SOCK")
    if named.lower() == "none":
        return None
    if named == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if named.startswith("$"):
        return os.environ.get(named[1:].strip("{}")) or None
    return str(_path(address, "IdentityAgent", named, tokens))


def _files(
    address: Address, found: dict[str, Any], option: str, usual: str, tokens: dict[str, str]
) -> tuple[Path, ...]:
    try:
        words = shlex.split(found.get(option.lower(), usual))
    except ValueError as error:
        raise ProbeError(f"{address.text}: {option} of the ssh configuration: {error}") from None
    return tuple(_path(address, option, word, tokens) for word in words if word.lower() != "none")


def _path(address: Address, option: str, text: str, tokens: dict[str, str]) -> Path:
    return Path(_expand(address, option, text, tokens)).expanduser()


def _expand(address: Address, option: str, text: str, tokens: dict[str, str]) -> str:
    """`text` with its tokens (ssh_config(5), TOKENS) replaced; those that are not known are refused."""

    def value(token: re.Match[str]) -> str:
        name = token[1]
        if name == "%":
            return "%"
        if name not in tokens:
            raise ProbeError(
                f"{address.text}: %{name} in {option} of the ssh configuration is not supported; write the value"
            )
        return tokens[name]

    return re.sub(r"%(.?)", value, text)


def _number(address: Address, option: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ProbeError(f"{address.text}: {option} of the ssh configuration must be {least} to {most}, not {text!r}")
    return int(text)


def _seconds(address: Address, option: str, text: str) -> float:
    """A time of ssh_config(5): a number, or numbers with s, m, h behind them. `none` is 0."""
    if text.lower() == "none":
        return 0.0
    if not re.fullmatch(r"([0-9]{1,6}[smhSMH]?)+", text):
        raise ProbeError(f"{address.text}: {option} of the ssh configuration is not a time: {text!r}")
    units = {"": 1, "s": 1, "m": 60, "h": 3600}
    return float(sum(int(n) * units[u.lower()] for n, u in re.findall(r"([0-9]+)([smhSMH]?)", text)))


def _yes(found: dict[str, Any], key: str) -> bool:
    return str(found.get(key, "no")).lower() in ("yes", "true")


def _unsupported(node: str, option: str) -> str:
    return (
        f"{node}: the ssh configuration sets {option}, which is not supported and would be missed; "
        "give a configuration without it for this node"
    )
