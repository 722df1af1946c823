# SPDX-License-Identifier: Apache-2.0
"""Put a recent CRIU beside this tool without touching the system.

The packages come from the machine's own mirror, through apt, so signatures are verified against the keys
the system already trusts. apt works on lists, cache and package status of its own: with an empty status it
resolves the whole closure, libc6 included, and the result runs under its own loader. Nothing is installed:
`dpkg -x` unpacks into a folder, never over `/`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpoint.criu.tool import MINIMUM_VERSION, Criu, format_version, private_command, read_version
from checkpoint.errors import CriuError, StorageError, ToolMissing
from checkpoint.paths import private_criu_dir
from checkpoint.run_command import run_group

# Suites in order of age, oldest first, with the component that holds CRIU. A suite the mirror does not have
# (any more, or yet) is passed over; the last entry of each is the distribution's moving name for its newest.
_SUITES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "debian": (("bookworm", "trixie", "forky", "duke", "sid"), "main"),
    "ubuntu": (("jammy", "noble", "plucky", "questing", "resolute", "devel"), "main universe"),
}
_APT_TIMEOUT: Final = 600.0
_SOURCES: Final = Path("/etc/apt")
_KEYRINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "debian": ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp"),
    "ubuntu": ("ubuntu-archive-keyring.gpg",),
}
_ONE_LINE: Final = re.compile(r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<rest>[^#]+)")


@dataclass(frozen=True)
class AptSource:
    """One archive the machine already trusts; `signed_by` is a path, a key block, or empty."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


def fetch_private_criu(target: Path | None = None) -> Criu:
    """Download, unpack and verify a CRIU >= 4.1 into `target` (default: `paths.private_criu_dir()`).

    Does nothing when a working one is there. The folder appears under its final name only after `criu
    --version` ran in it; on any failure nothing is left behind.

    Raises CriuError when no suite of the machine's mirror has a CRIU that works, ToolMissing without apt,
    StorageError when the folder cannot be written.
    """
    target = target or private_criu_dir()
    present = _working(target)
    if present is not None:
        return present
    for tool in ("apt-get", "apt-cache", "dpkg", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise ToolMissing(
                f"{tool} is not on this machine, so no CRIU package can be fetched: install CRIU >= "
                f"{format_version(MINIMUM_VERSION)} with the system's own package tool"
            )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".criu-", dir=target.parent) as name:
            return _fetch_into(Path(name), target)
    except OSError as error:
        raise StorageError(
            f"cannot install the private CRIU at {target}: {error}; free space or set PROBE_HOME"
        ) from error


def _working(root: Path) -> Criu | None:
    command = private_command(root)
    if command is None:
        return None
    try:
        version = read_version(command)
    except CriuError:
        return None
    return Criu(command, version, "private") if version >= MINIMUM_VERSION else None


def _fetch_into(work: Path, target: Path) -> Criu:
    system, codename = _distribution()
    source = machine_source(system)
    reasons = []
    for suite in suites_from(system, codename):
        try:
            root = _unpack_suite(work / suite, source, suite, _SUITES[system][1])
        except CriuError as error:
            reasons.append(f"{suite}: {error}")
            continue
        criu = _working(root)
        if criu is None:
            reasons.append(f"{suite}: the unpacked CRIU does not start")
            continue
        if os.geteuid() == 0:
            criu.check()
        if target.exists():
            target.rename(work / "replaced")
        root.rename(target)
        command = private_command(target)
        assert command is not None, "the folder was verified just before it was renamed"
        return Criu(command, criu.version, "private")
    raise CriuError(
        f"no suite of {source.uri} gave a CRIU >= {format_version(MINIMUM_VERSION)} ({'; '.join(reasons)}): "
        "install one by hand so that `criu --version` finds it"
    )


def suites_from(system: str, codename: str) -> tuple[str, ...]:
    """The machine's own suite and every newer one, nearest first; an unknown one and the moving one else."""
    known = _SUITES[system][0]
    return known[known.index(codename) :] if codename in known else (codename, known[-1])


def _distribution() -> tuple[str, str]:
    """(`debian` or `ubuntu`, codename) from os-release, following ID_LIKE for derivatives."""
    path = Path("/etc/os-release")
    text = path.read_text() if path.exists() else ""
    fields = {k: v.strip().strip("\"'") for k, _, v in (line.partition("=") for line in text.splitlines())}
    names = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    for system in _SUITES:
        if names[0] == system:
            return system, fields.get("VERSION_CODENAME", "")
    for system, field in (("ubuntu", "UBUNTU_CODENAME"), ("debian", "DEBIAN_CODENAME")):
        if system in names and fields.get(field):
            return system, fields[field]
    raise CriuError(
        f"a private CRIU can be fetched on Debian and Ubuntu only, not on {names[0] or 'unknown'!r}: "
        f"install CRIU >= {format_version(MINIMUM_VERSION)} with the system's own package tool"
    )


def machine_source(system: str) -> AptSource:
    """The archive of this machine's own release, which must be of `system` (`debian` or `ubuntu`).

    Raises CriuError on another system, or when no apt source names the release.
    """
    found, codename = _distribution()
    if found != system:
        raise CriuError(f"this machine's mirror serves {found}, not {system}: use a {system} machine")
    return archive_source(system, codename, read_sources(_SOURCES))


def archive_source(system: str, codename: str, sources: list[AptSource]) -> AptSource:
    """The source that serves the machine's own release, and so the newer ones, of the same signed archive.

    Raises CriuError when no source names the release.
    """
    matching = [s for s in sources if codename in s.suites and "main" in s.components]
    if not matching:
        raise CriuError(
            f"no apt source of this machine serves {codename!r} main, so CRIU has no mirror to come from: "
            "add the distribution's archive to /etc/apt/sources.list.d"
        )
    source = matching[0]
    if not source.signed_by:
        for name in _KEYRINGS[system]:
            keyring = Path("/usr/share/keyrings") / name
            if keyring.is_file():
                return AptSource(source.uri, source.suites, source.components, str(keyring))
    return source


def read_sources(etc: Path) -> list[AptSource]:
    """Every enabled binary source below `etc` (/etc/apt), in both formats of sources.list(5)."""
    found: list[AptSource] = []
    parts = sorted((etc / "sources.list.d").glob("*")) if (etc / "sources.list.d").is_dir() else []
    for path in [etc / "sources.list", *parts]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".sources":
            found.extend(_deb822_sources(text))
        elif path.suffix == ".list":
            found.extend(_line_sources(text))
    return found


def _line_sources(text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        match = _ONE_LINE.match(line)
        if match is None:
            continue
        options = dict(re.findall(r"([\w-]+)=(\S+)", match["options"] or ""))
        yield AptSource(match["uri"], (match["suite"],), tuple(match["rest"].split()), options.get("signed-by", ""))


def _deb822_sources(text: str) -> Iterator[AptSource]:
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        last = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and last:
                fields[last] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = value.strip()
        disabled = fields.get("enabled", "yes").lower() in ("no", "false")
        if disabled or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            yield AptSource(
                uri,
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", ""),
            )


def _unpack_suite(work: Path, source: AptSource, suite: str, components: str) -> Path:
    """Download CRIU and its library closure from `suite` and unpack them; return the folder.

    Raises CriuError when the suite has no recent CRIU or apt refuses.
    """
    for name in ("lists/partial", "cache/archives/partial", "sources", "root"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    stanza = [
        "Types: deb",
        f"URIs: {source.uri}",
        f"Suites: {suite}",
        f"Components: {components}",
        "Architectures: amd64",
        *([f"Signed-By: {source.signed_by}"] if source.signed_by else []),
    ]
    (work / "sources/one.sources").write_text("\n".join(stanza) + "\n")
    options = _apt_options(work)
    _apt(["apt-get", *options, "update"])
    candidate = re.search(r"Candidate:\s*(\S+)", _apt(["apt-cache", *options, "policy", "criu"]))
    version = tuple(map(int, re.findall(r"\d+", candidate.group(1).partition("-")[0]))) if candidate else ()
    if version < MINIMUM_VERSION:
        raise CriuError(f"has CRIU {format_version(version)}" if version else "has no CRIU")
    _apt(["apt-get", *options, "--no-install-recommends", "--download-only", "-y", "install", "criu"])
    root = work / "root"
    for package in sorted((work / "cache/archives").glob("*.deb")):
        _apt(["dpkg", "-x", str(package), str(root)])
    _drop_unused(root)
    return root


def _apt_options(work: Path) -> list[str]:
    settings = {
        "Dir::State": work,
        "Dir::State::lists": work / "lists",
        # An empty status makes apt take every dependency, libc6 and its loader too, from the newer suite.
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Cache::archives": work / "cache/archives",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": work / "sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Log": work,
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowDowngradeToInsecureRepositories": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "APT::Keep-Downloaded-Packages": "true",
        "Debug::NoLocking": "true",
    }
    if os.geteuid() == 0:
        # apt's own user cannot reach a folder below /root.
        settings["APT::Sandbox::User"] = "root"
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _apt(command: list[str]) -> str:
    try:
        status, printed = run_group(command, _APT_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise CriuError(f"{command[0]} did not finish within {_APT_TIMEOUT:g} s: check the network") from None
    if status != 0:
        lines = [line for line in printed.splitlines() if line.startswith(("E:", "W:", "dpkg"))]
        raise CriuError(f"{command[0]} failed: {' '.join(lines or [printed.strip()])[:500]}")
    return printed


def _drop_unused(root: Path) -> None:
    """Remove what CRIU never opens, since the folder may travel; keep every package's licence text."""
    shutil.rmtree(root / "usr/lib" / "x86_64-linux-gnu" / "gconv", ignore_errors=True)
    for path in sorted((root / "usr/share").rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.name != "copyright":
            path.unlink()
