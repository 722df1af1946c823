# SPDX-License-Identifier: Apache-2.0
"""Addresses, known hosts and ssh configurations: what is read from them, against what OpenSSH itself reads."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sshd import make_key

from checkpoint.errors import ProbeError, StorageError
from probe.ssh.addresses import MAX_HOSTS_BYTES, Address, parse_address, read_hosts
from probe.ssh.config import REFUSED, Settings, settings
from probe.ssh.known_hosts import Entry, HostKey, add, entries_of, judge
from probe.ssh.text import TAIL_BYTES, Tail, printable, printable_end

ROOT = Path(__file__).parents[2]

# -- addresses


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("node1", ("node1", None, None)),
        (" node1 ", ("node1", None, None)),
        ("user@node2:2222", ("node2", "user", 2222)),
        ("first.last@site@login.example.org", ("login.example.org", "first.last@site", None)),
        ("10.0.0.1:1", ("10.0.0.1", None, 1)),
        ("[::1]:65535", ("::1", None, 65535)),
        ("user@[fe80::1]:22", ("fe80::1", "user", 22)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", None, None)),
    ],
)
def test_addresses(text: str, parts: tuple[str, str | None, int | None]) -> None:
    assert parse_address(text) == Address(text.strip(), *parts)


@pytest.mark.parametrize(
    "text",
    ["", "@", "@node", "user@", "node:", "node:0", "node:65536", "node:-1", "node:2a", "node:٢", "::1", "fe80::1:22",
     "[::1", "[node]:22", "[]", "[::1]22", "-oProxyCommand=x", "-l@node", "a b", "node/x", "no;de", "$(x)@node",
     "user@node@", "node\x1b[2J", "x" * 300],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ProbeError) as caught:
        parse_address(text)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except ProbeError:
        return
    assert address.text == text.strip() and address.host in text
    # Nothing that a shell or a terminal would act on, nor an option.
    for name in (address.host, address.user or "x"):
        assert not name.startswith("-") and not set(name) & set(" \t\n\"'`$;&|<>(){}\\\x1b")


def test_files_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text(
        "# all\n\nnode1\n  user@node2:2222   # slow\nnode3, node4,[::1]:22\r\nnode#5x\n".replace("node#5x", "n5")
    )
    groups = read_hosts(path)
    assert [[a.text for a in group] for group in groups] == [
        ["node1"], ["user@node2:2222"], ["node3", "node4", "[::1]:22"], ["n5"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("node1\nnode 2\n", "line 2"),
        ("node1,\n", "line 1"),
        ("node1\n\nnode2,node1\n", "line 3: node1 is listed already (line 1)"),
        ("node1,node1\n", "listed already"),
        ("# nothing\n", "names no node"),
        ("\0\xff\n", "line 1"),
        ("n\n" * MAX_HOSTS_BYTES, "larger than"),
    ],
)
def test_files_of_nodes_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "nodes"
    path.write_text(content)
    with pytest.raises(ProbeError, match=re.escape(str(path))) as caught:
        read_hosts(path)
    assert said in str(caught.value)


def test_a_missing_file_of_nodes(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_hosts(tmp_path / "none")


# -- text of nodes


@given(st.one_of(st.text(), st.binary()), st.integers(1, 100))
def test_text_of_nodes_is_printable_and_short(text: str | bytes, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable() and len(shown) <= most + 3


@given(st.text(), st.integers(1, 100))
def test_of_a_long_complaint_the_end_is_shown(text: str, most: int) -> None:
    shown = printable_end(text, most)
    assert shown.isprintable() and len(shown) <= most + 3
    assert printable_end(f"{text}\nValueError:\a no\n", 18).endswith("ValueError: no")
    assert printable_end("Traceback\nValueError: no\n", 16) == "...ValueError: no"
    assert printable_end("\nValueError: no\n", 16) == "ValueError: no"


@given(st.lists(st.binary(max_size=TAIL_BYTES)))
def test_the_end_of_messages_is_kept(parts: list[bytes]) -> None:
    tail = Tail(100)
    for part in parts:
        tail.add(part)
    assert all(c.isprintable() or c in "\n\t" for c in tail.text()) and len(tail.text()) <= 100
    plain = Tail(100)
    for part in parts:
        plain.add(base64.b64encode(part))
    assert plain.text() == b"".join(map(base64.b64encode, parts)).decode()[-100:]


def test_direction_marks_and_escapes_are_taken_out() -> None:
    assert printable("a\x1b[31mb\u202ec\r\nd\u2028e\x07") == "a [31mb c d e"


# -- known hosts


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


# -- ssh configuration

CONFIG = """
Include {include}
AddressFamily inet6
Host alias other
    HostName %h.site.org
    User=someone
    Port 2200
    IdentityFile ~/.ssh/special
    IdentityFile "%d/.ssh/%r key"
    IdentitiesOnly yes
    HostKeyAlias cluster
    UserKnownHostsFile ~/.ssh/one "/tmp/two %n"
    GlobalKnownHostsFile /etc/three
    ServerAliveInterval 7
    ServerAliveCountMax 2
    ConnectTimeout 1m5s
    HashKnownHosts yes
Match originalhost matched,also !user root
    Port 77
Match host *.site.org
    User late
    Port 33
Host jumped !jumped.not
    ProxyJump first@a:1,b
    ProxyCommand never
Host commanded
    ProxyCommand run --to %h:%p as %r of %n 100%%
    ProxyJump never
Host direct
    ProxyJump none
Host bastion behind
    ProxyJump bastion
Match all
    ServerAliveCountMax 9
Host *
    User fallback
    IdentityAgent ~/agent
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = Path.home()
    # OpenSSH takes the home from the user database, so both must mean the same one.
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "included").write_text("Host included\n  HostName 10.9.8.7\n  Port 99\n")
    path = tmp_path / "config"
    path.write_text(CONFIG.format(include=tmp_path / "incl*"))
    return path


def as_openssh(config: Path, text: str) -> dict[str, list[str]]:
    said = subprocess.run(["ssh", "-G", "-F", config, f"ssh://{text}"], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = {}
    for line in said.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize(
    "text",
    ["alias", "other:5", "me@alias:6", "included", "me@included", "matched", "root@matched", "x@matched", "also",
     "x.site.org", "jumped", "jumped.not", "commanded", "me@commanded:8", "direct", "behind", "unknown"],
)  # fmt: skip
def test_settings_are_those_of_openssh(config: Path, text: str) -> None:
    ours, theirs = settings(parse_address(text), config), as_openssh(config, text)
    assert ours.host == theirs["hostname"][0]
    assert ours.user == theirs["user"][0]
    assert ours.port == int(theirs["port"][0])
    assert ours.alive_count == int(theirs["serveralivecountmax"][0])
    assert ours.alive_seconds == (float(theirs["serveraliveinterval"][0]) or 15.0)
    assert ours.connect_seconds == (
        20.0 if theirs["connecttimeout"][0] == "none" else float(theirs["connecttimeout"][0])
    )
    assert ours.family == socket.AF_INET6 and theirs["addressfamily"] == ["inet6"]
    assert ours.hash_known_hosts == (theirs["hashknownhosts"][0] == "yes")
    assert ours.identities_only == (theirs["identitiesonly"][0] == "yes")
    assert ours.key_name == theirs.get("hostkeyalias", [ours.host])[0]
    assert [hop.text for hop in ours.jumps] == [h for v in theirs.get("proxyjump", []) for h in v.split(",")]
    if "hostkeyalias" in theirs:
        assert ours.key_port == 22
        assert ours.identities == (Path.home() / ".ssh/special", Path.home() / f".ssh/{ours.user} key")
        assert ours.user_known_hosts == (Path.home() / ".ssh/one", Path(f"/tmp/two {parse_address(text).host}"))
        assert ours.global_known_hosts == (Path("/etc/three"),)
    if text.endswith(("commanded", "commanded:8")):
        assert ours.proxy_command == f"run --to commanded:{ours.port} as {ours.user} of commanded 100%"
    else:
        assert ours.proxy_command is None
    assert ours.agent == str(Path.home() / "agent")


def test_a_host_is_not_its_own_jump_host(config: Path) -> None:
    assert settings(parse_address("bastion"), config).jumps == ()


def test_settings_without_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for config in (None, Path("/dev/null")):
        found = settings(parse_address("me@[fe80::1%eth0]:23"), config)
        assert (found.host, found.user, found.port, found.peer) == ("fe80::1%eth0", "me", 23, "me@[fe80::1%eth0]:23")
        assert found.user_known_hosts[0] == tmp_path / ".ssh/known_hosts" and found.agent is None
        assert {path.parent for path in found.identities} == {tmp_path / ".ssh"}
    given = settings(parse_address("node1"), None, known_hosts=Path("/k"), identity=Path("~/i"))
    assert given.identities == (tmp_path / "i",)
    assert (given.user_known_hosts, given.global_known_hosts) == ((Path("/k"),), ())


def test_the_agent_may_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "/run/other")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/usual")
    path = tmp_path / "config"

    def agent_of(option: str) -> str | None:
        path.write_text(option)
        return settings(parse_address("n"), path).agent

    assert [agent_of(f"IdentityAgent {v}") for v in ("$OTHER", "${OTHER}", "none", "SSH_AUTH_SOCK")] == [
        "/run/other", "/run/other", None, "/run/usual",
    ]  # fmt: skip
    assert agent_of("") == "/run/usual"


def refused(config: Path, content: str) -> str:
    config.write_text(content)
    with pytest.raises(ProbeError) as caught:
        settings(parse_address("node1"), config)
    return str(caught.value)


@pytest.mark.parametrize("option", REFUSED)
def test_options_that_would_be_missed_are_refused(tmp_path: Path, option: str) -> None:
    path = tmp_path / "config"
    assert f"node1: the ssh configuration sets {option}" in refused(path, f"Host node1\n {option.upper()} anything\n")
    for value in REFUSED[option]:
        path.write_text(f"{option} {value}\n")
        assert isinstance(settings(parse_address("node1"), path), Settings)
    path.write_text(f"Host node2\n {option} anything\n")
    assert isinstance(settings(parse_address("node1"), path), Settings)


def test_refused_options_are_documented() -> None:
    section = (ROOT / "docs" / "ssh.md").read_text().split("### Refused")[1].split("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*)\|$", section, re.M)
    assert {option: tuple(re.findall("`(.+?)`", values)) for option, values in rows} == REFUSED


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Match exec true\n Port 1\n", "`Match exec` is not supported"),
        ("Match host x EXEC true\n", "line 1: `Match exec`"),
        ("Match localnetwork 10.0.0.0/8\n", "`Match localnetwork`"),
        ("Host a\nInclude b\n", "line 2: Include inside"),
        ("Include {path}\n", "include each other"),
        ("Match final host x\n", "`Match final`"),
        ("Match canonical all\n", "`Match canonical`"),
        ("Port twelve\n", "Port of the ssh configuration must be"),
        ("ConnectTimeout soon\n", "ConnectTimeout of the ssh configuration is not a time"),
        ("ProxyCommand a %T\n", "%T in ProxyCommand"),
        ("UserKnownHostsFile 'a\n", "UserKnownHostsFile of the ssh configuration"),
        ("ProxyJump a b\n", "no host can have that name"),
        ("Nonsense\n", "config: "),
        ("x" * (5 << 20), "larger than"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config"
    assert said in refused(path, content.replace("{path}", str(path)))


def test_match_is_not_fooled_by_capitals(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Match Host elsewhere\n Port 1\n")
    assert settings(parse_address("node1"), path).port == 22


def test_a_configuration_that_others_can_change(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(StorageError, match="others can change it"):
        settings(parse_address("node1"), path)
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(StorageError, match="others can change it"):
        settings(parse_address("node1"), path)
    with pytest.raises(StorageError, match="no such ssh configuration"):
        settings(parse_address("node1"), tmp_path / "none")
