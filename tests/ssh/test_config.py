# SPDX-License-Identifier: Apache-2.0
"""Settings from ssh configurations: those that OpenSSH itself reads, and what is refused."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from checkpoint.errors import ProbeError, StorageError
from probe.ssh.addresses import parse_address
from probe.ssh.config import REFUSED, Settings, settings

ROOT = Path(__file__).parents[2]


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
