# SPDX-License-Identifier: Apache-2.0
"""Known hosts: the lines that OpenSSH finds, judgement of keys, and keys added."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path

import pytest
from sshd import make_key

from checkpoint.errors import StorageError
from probe.ssh.known_hosts import Entry, HostKey, add, entries_of, judge


@pytest.fixture(scope="module")
def public_keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("keys")
    for number, kind in enumerate(("ed25519", "ed25519", "ecdsa")):
        make_key(folder / f"{number}", kind=kind)
    return [" ".join((folder / f"{n}.pub").read_text().split()[:2]) for n in range(3)]


def key_of(public: str) -> HostKey:
    kind, text = public.split()
    return HostKey(kind, base64.b64decode(text))


NAMES = [
    ("node1", 22),
    ("node1", 2222),
    ("node10", 22),
    ("node2.site.org", 22),
    ("10.1.2.3", 22),
    ("::1", 2222),
    ("NODE1", 22),
]
LINES = ["node1 K",
         "[node1]:2222 K", "node?,!node2.* K", "*.site.org,10.1.2.3 K", "[*]:2222 K", "!node1,* K", "NoDe1 K",
         "[::1]:2222 K comment # more", " node1 K", "#node1 K", "@cert-authority * K", "@revoked node1 K", "n[o]de1 K",
         "@other node1 K"]  # fmt: skip


@pytest.mark.parametrize("hashed", [False, True])
def test_lines_found_are_those_that_openssh_finds(tmp_path: Path, public_keys: list[str], hashed: bool) -> None:
    path = tmp_path / "known"
    # ssh-keygen hashes no file with a marker that it does not know.
    lines = [line for line in LINES if not (hashed and line.startswith("@other"))]
    path.write_text("\n".join(line.replace("K", public_keys[0], 1) for line in lines) + "\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-H", "-f", path], check=True, capture_output=True)
        assert "|1|" in path.read_text()
    matched = 0
    for name, port in NAMES:
        wanted = name.lower() if port == 22 else f"[{name.lower()}]:{port}"
        said = subprocess.run(["ssh-keygen", "-F", wanted, "-f", path], capture_output=True, text=True).stdout
        expected = [int(n) for n in re.findall(r"found: line (\d+)", said)]
        assert [e.line for e in entries_of([path], name, port)] == expected, (name, port)
        matched += len(expected)
    assert matched > 10


def test_broken_lines_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(
        b"node1\nnode1 ssh-ed25519\nnode1 ssh-ed25519 ???\n|1|x node1 x\n|1 k AAAA\n\xff\0 a b\n@revoked\n"
    )
    assert entries_of([path], "node1") == []


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path, public_keys: list[str]) -> None:
    for public in public_keys:
        (tmp_path / "k.pub").write_text(public)
        said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "k.pub"], capture_output=True, text=True, check=True)
        assert key_of(public).fingerprint in said.stdout


def test_judgement(tmp_path: Path, public_keys: list[str]) -> None:
    first, second, other_kind = map(key_of, public_keys)

    def entry(key: HostKey, marker: str = "") -> Entry:
        return Entry(tmp_path, 1, marker, key)  # type: ignore[arg-type]

    assert judge([], first).status == "unknown"
    assert judge([entry(second), entry(first)], first).status == "trusted"
    assert judge([entry(other_kind), entry(second)], first).status == "changed"
    assert judge([entry(other_kind), entry(second)], first).entry == entry(second)
    assert judge([entry(other_kind)], first).status == "changed"
    assert judge([entry(first), entry(first, "@revoked")], first).status == "revoked"
    assert judge([entry(second, "@revoked")], first).status == "unknown"
    verdict = judge([entry(first, "@cert-authority")], first)
    assert (verdict.status, verdict.entry) == ("unknown", entry(first, "@cert-authority"))


@pytest.mark.parametrize("hashed", [False, True])
def test_added_keys_are_found_by_openssh(tmp_path: Path, public_keys: list[str], hashed: bool) -> None:
    path = tmp_path / "new" / "known"
    add(path, "Node1", 2222, key_of(public_keys[0]), hashed=hashed)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    path.write_text(path.read_text().rstrip("\n"))
    add(path, "node2", 22, key_of(public_keys[2]), hashed=hashed)
    for name in ("[node1]:2222", "node2"):
        assert subprocess.run(["ssh-keygen", "-F", name, "-f", path], capture_output=True).returncode == 0
    assert len(path.read_text().splitlines()) == 2 and ("node" in path.read_text()) != hashed


def test_known_hosts_that_cannot_be_used(tmp_path: Path) -> None:
    assert entries_of([tmp_path / "none"], "node1") == []
    with pytest.raises(StorageError, match="cannot be read"):
        entries_of([tmp_path], "node1")
    with pytest.raises(StorageError, match="cannot be added"):
        add(tmp_path, "node1", 22, HostKey("ssh-ed25519", b""), hashed=False)
