# SPDX-License-Identifier: Apache-2.0
"""Host keys, keys of users, and ways to a node, with real SSH servers: who is trusted, and what is said if not."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from connections import configured, network, node, refusal, run, server
from sshd import GUEST, Machine, Server, make_key

from probe.ssh.addresses import parse_address
from probe.ssh.interface import SshOptions
from probe.ssh.reach import connect

__all__ = ["network", "node", "server"]


@pytest.fixture(scope="module")
def second(node: Machine) -> Server:
    return node.serve()


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "known"


def works(address: str, options: SshOptions) -> bool:
    with connect(parse_address(address), options) as connection:
        return run(connection, "echo yes") == "yes"


# -- host keys


def test_an_unknown_host_key(node: Machine, server: Server, known: Path, tmp_path: Path) -> None:
    """Refused with its fingerprint, and with a command line that makes it known."""
    options = node.options(known_hosts=known)
    said = refusal(lambda: connect(server.address(), options))
    assert f"ssh-ed25519 {server.fingerprint}, is not known" in said and "--accept-new-host-key" in said
    assert not known.exists()
    scan = re.search(r"`(ssh-keyscan [^`]+)`", said)
    assert scan
    subprocess.run(node.command(["sh", "-c", scan[1]]), check=True, capture_output=True, timeout=30)
    assert works(f"root@127.0.0.1:{server.port}", options)
    # Where such a line would be of no use it is not given.
    for config in (f"ProxyJump root@localhost:{server.port}\n", "HostKeyAlias cluster\n"):
        other = configured(tmp_path, node, config, known_hosts=tmp_path / "none")
        assert (
            "ssh-keyscan" not in refusal(lambda other=other: connect(parse_address("root@127.0.0.1:1"), other))
            or "Proxy" in config
        )


@pytest.mark.parametrize("hashed", ["yes", "no"])
def test_new_host_keys_are_accepted_when_asked_to(
    node: Machine, server: Server, known: Path, tmp_path: Path, hashed: str
) -> None:
    """By several at once, into a file whose last line is not finished, and only once."""
    known.write_text("other ssh-ed25519 AAAA")
    text = f"UserKnownHostsFile {known}\nHashKnownHosts {hashed}\n"
    options = configured(tmp_path, node, text, known_hosts=None, accept_new_host_key=True)
    with connect(server.address(), options) as connection:
        assert len(connection.notes) == 1
        note = connection.notes[0]
        assert server.fingerprint in note and str(known) in note and "new host key" in note
    lines = known.read_text().splitlines()
    assert lines[0] == "other ssh-ed25519 AAAA" and len(lines) == 2
    assert (f"[127.0.0.1]:{server.port}" in lines[1]) == (hashed == "no")
    with connect(server.address(), options) as connection:
        assert connection.notes == ()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda n: works(f"root@127.0.0.{n}:{server.port}", options), range(2, 6)))
    assert len(known.read_text().splitlines()) == 6


def test_no_file_for_new_host_keys(node: Machine, server: Server, tmp_path: Path) -> None:
    text = "UserKnownHostsFile none\nGlobalKnownHostsFile none\n"
    options = configured(tmp_path, node, text, known_hosts=None, accept_new_host_key=True)
    assert "names no file to add it to" in refusal(lambda: connect(server.address(), options))
    unwritable = node.options(known_hosts=Path("/proc/none"), accept_new_host_key=True)
    with pytest.raises(Exception, match="/proc/none: the new host key cannot be added"):
        connect(server.address(), unwritable)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_a_changed_host_key(node: Machine, server: Server, known: Path, tmp_path: Path, kind: str) -> None:
    """Never accepted, also not one of another kind than the known one, nor when new ones are."""
    make_key(tmp_path / "other", kind=kind)
    public = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known.write_text(f"# comment\n[127.0.0.1]:{server.port} {public}\n")
    for accept in (False, True):
        options = node.options(known_hosts=known, accept_new_host_key=accept)
        said = refusal(lambda options=options: connect(server.address(), options))
        assert "is not the known one" in said and f"{known}, line 2 has {public.split()[0]} SHA256:" in said
        assert server.fingerprint in said
    # The advice works.
    advice = re.search(r"`(ssh-keygen -R [^`]+)`", said)
    assert advice
    subprocess.run(shlex.split(advice[1]), check=True, capture_output=True)
    assert "is not known" in refusal(lambda: connect(server.address(), node.options(known_hosts=known)))


def test_a_revoked_host_key(node: Machine, server: Server, known: Path) -> None:
    known.write_text(f"[127.0.0.1]:{server.port} {server.host_key}\n@revoked * {server.host_key}\n")
    for name in ("127.0.0.1", "localhost"):
        options = node.options(known_hosts=known, accept_new_host_key=True)
        said = refusal(lambda name=name, options=options: connect(server.address(host=name), options))
        assert f"is revoked ({known}, line 2)" in said


def test_a_certificate_authority_is_not_enough(node: Machine, server: Server, known: Path) -> None:
    known.write_text(f"@cert-authority * {server.host_key}\n")
    said = refusal(lambda: connect(server.address(), node.options(known_hosts=known)))
    assert f"({known}, line 1 names an authority, but host certificates are not supported)" in said


def test_a_server_with_a_host_certificate_shows_its_plain_key(node: Machine, tmp_path: Path) -> None:
    port = 2900
    key = node.folder / f"host_{port}_ed25519"
    make_key(key)
    make_key(tmp_path / "authority")
    sign = ["ssh-keygen", "-q", "-s", tmp_path / "authority", "-I", "x", "-h", f"{key}.pub"]
    subprocess.run(sign, check=True)
    certified = node.serve(f"HostCertificate /run/node/{key.name}-cert.pub", port=port)
    assert works(f"root@127.0.0.1:{port}", node.options())
    node.stop(certified)


def test_kinds_of_host_keys(node: Machine, known: Path) -> None:
    """The server has several; the one that is known is asked for, whichever it likes best."""
    for kind in ("rsa", "ecdsa"):
        key = node.folder / f"several_{kind}"
        make_key(key, kind=kind)
        several = node.serve(f"HostKey /run/node/{key.name}", known=False)
        public = " ".join(Path(f"{key}.pub").read_text().split()[:2])
        known.write_text(f"[127.0.0.1]:{several.port} {public}\n")
        assert works(f"root@127.0.0.1:{several.port}", node.options(known_hosts=known))
        node.stop(several)


@pytest.mark.parametrize("name", ["127.0.0.1", "*.0.0.?,!127.0.0.2", "hashed", "alias", "global"])
def test_ways_to_know_a_host(node: Machine, server: Server, known: Path, tmp_path: Path, name: str) -> None:
    """Without its port, by a pattern, hashed, by an alias, for all users."""
    text = {"alias": "HostKeyAlias cluster\n", "global": f"UserKnownHostsFile none\nGlobalKnownHostsFile {known}\n"}
    shown = {"alias": "cluster", "hashed": f"[127.0.0.1]:{server.port}", "global": f"[127.0.0.1]:{server.port}"}
    known.write_text(f"{shown.get(name, name)} {server.host_key}\n")
    if name == "hashed":
        subprocess.run(["ssh-keygen", "-H", "-f", known], check=True, capture_output=True)
        assert "127.0.0.1" not in known.read_text()
    file = None if name == "global" else known
    options = configured(tmp_path, node, text.get(name, ""), known_hosts=file)
    assert works(f"root@127.0.0.1:{server.port}", options)
    if name.startswith("*"):
        assert "is not known" in refusal(lambda: connect(server.address(host="127.0.0.2"), options))


# -- users and their keys


def test_a_wrong_key(node: Machine, server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    said = refusal(lambda: connect(server.address(), node.options(identity=tmp_path / "wrong")))
    assert f"it accepts none of the keys for root: {tmp_path / 'wrong'}" in said
    said = refusal(lambda: connect(server.address("nobody-here"), node.options()))
    assert "none of the keys for nobody-here" in said


def test_no_usable_key(node: Machine, server: Server, tmp_path: Path) -> None:
    options = node.options(identity=None)
    assert "no key to log in with as root" in refusal(lambda: connect(server.address(), options))
    locked, open_to_all, nonsense, public = (tmp_path / n for n in ("locked", "open", "nonsense", "public"))
    make_key(locked, passphrase="secret")
    make_key(open_to_all)
    open_to_all.chmod(0o644)
    nonsense.write_text("not a key")
    nonsense.chmod(0o600)
    make_key(public)
    public.unlink()
    for path, said in (
        (locked, f"{locked} has a passphrase (give it to an agent: ssh-add {locked})"),
        (open_to_all, f"{open_to_all} can be read by others (chmod 600 it)"),
        (nonsense, f"{nonsense} is not a private key that can be used"),
        (public, f"{public} is not there, and the agent does not hold it"),
    ):
        options = node.options(identity=path)
        assert said in refusal(lambda options=options: connect(server.address(), options))


def test_usual_keys_and_configured_ones(node: Machine, server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True, mode=0o700)
    (home / "id_ed25519").write_bytes(node.identity.read_bytes())
    (home / "id_ed25519").chmod(0o600)
    assert works(f"{GUEST}@127.0.0.1:{server.port}", node.options(identity=None, config=None))
    (home / "id_ed25519").rename(home / "mine")
    (home / "config").write_text(
        f"Host it\n HostName 127.0.0.1\n Port {server.port}\n User {GUEST}\n UserKnownHostsFile {node.known_hosts}\n"
        f" IdentityFile {tmp_path / 'wrong'}\n IdentityFile ~/.ssh/%r-none\n IdentityFile ~/.ssh/mine\n"
    )  # fmt: skip
    with connect(parse_address("it"), SshOptions()) as connection:
        assert connection.peer == f"{GUEST}@127.0.0.1:{server.port}"
        assert run(connection, "id -un") == GUEST


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A real ssh-agent; yields its socket."""
    path = tmp_path / "agent"
    running = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            assert running.poll() is None
        yield path
    finally:
        running.terminate()
        running.wait()


def test_keys_of_an_agent(
    node: Machine, server: Server, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a key whose file has a passphrase; those that the user names are tried first."""
    environment = {"SSH_AUTH_SOCK": str(agent), "PATH": "/usr/bin:/bin"}

    def hold(path: Path) -> None:
        subprocess.run(["ssh-add", "-q", path], env=environment, check=True, capture_output=True)

    for number in range(8):
        make_key(tmp_path / f"other{number}")
        hold(tmp_path / f"other{number}")
    hold(node.identity)
    locked = tmp_path / "locked"
    locked.write_bytes(node.identity.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", locked], check=True, capture_output=True)
    (tmp_path / "locked.pub").write_text(Path(f"{node.identity}.pub").read_text())

    # Nine keys are more than the server has patience for.
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    said = refusal(lambda: connect(server.address(), node.options(identity=None)))
    assert "6 keys may be too many for it: name the right one and set IdentitiesOnly" in said
    assert works(f"root@127.0.0.1:{server.port}", node.options(identity=locked))
    (tmp_path / "locked.pub").unlink()
    assert "has a passphrase" in refusal(
        lambda: connect(server.address(), configured(tmp_path, node, "IdentitiesOnly yes\n", identity=locked))
    )
    # By the configuration's socket; a public key alone names the one to use.
    monkeypatch.delenv("SSH_AUTH_SOCK")
    text = f"IdentityAgent {agent}\nIdentityFile {node.identity}.pub\nIdentitiesOnly yes\n"
    assert works(f"root@127.0.0.1:{server.port}", configured(tmp_path, node, text, identity=None))


def test_an_agent_that_is_gone(node: Machine, server: Server, tmp_path: Path) -> None:
    options = configured(tmp_path, node, f"IdentityAgent {tmp_path}/none\n")
    assert works(f"root@127.0.0.1:{server.port}", options)
    make_key(tmp_path / "wrong")
    options = configured(tmp_path, node, f"IdentityAgent {tmp_path}/none\n", identity=tmp_path / "wrong")
    assert f"the agent at {tmp_path}/none does not answer" in refusal(lambda: connect(server.address(), options))


def test_a_certificate_of_the_user(node: Machine, tmp_path: Path) -> None:
    make_key(tmp_path / "authority")
    make_key(tmp_path / "mine")
    sign = ["ssh-keygen", "-q", "-s", tmp_path / "authority", "-I", "me", "-n", "root", tmp_path / "mine.pub"]
    subprocess.run(sign, check=True)
    (node.folder / "authority.pub").write_bytes((tmp_path / "authority.pub").read_bytes())
    trusting = node.serve("TrustedUserCAKeys /run/node/authority.pub")
    assert works(f"root@127.0.0.1:{trusting.port}", node.options(identity=tmp_path / "mine"))
    # A server that does not know the authority is shown the key itself.
    (tmp_path / "plain").write_bytes(node.identity.read_bytes())
    (tmp_path / "plain").chmod(0o600)
    (tmp_path / "plain.pub").write_bytes(Path(f"{node.identity}.pub").read_bytes())
    make_key(tmp_path / "unknown")
    sign = ["ssh-keygen", "-q", "-s", tmp_path / "unknown", "-I", "me", "-n", "root", tmp_path / "plain.pub"]
    subprocess.run(sign, check=True)
    assert works(f"root@127.0.0.1:{trusting.port}", node.options(identity=tmp_path / "plain"))
    node.stop(trusting)


def test_more_than_a_key_is_wanted(node: Machine) -> None:
    strict = node.serve("AuthenticationMethods publickey,keyboard-interactive", "KbdInteractiveAuthentication yes")
    assert "besides a key it asks for keyboard-interactive" in refusal(
        lambda: connect(strict.address(), node.options())
    )
    node.stop(strict)
    passwords = node.serve("PubkeyAuthentication no", "PasswordAuthentication yes")
    assert "by password only, not by keys" in refusal(lambda: connect(passwords.address(), node.options()))
    node.stop(passwords)


def test_what_the_node_says_at_the_login(node: Machine, tmp_path: Path) -> None:
    (node.folder / "banner").write_bytes(b"Closed for \x1b[31mmaintenance\x1b[0m\x07\n" + b"x" * 100_000)
    talking = node.serve("Banner /run/node/banner")
    make_key(tmp_path / "wrong")
    said = refusal(lambda: connect(talking.address(), node.options(identity=tmp_path / "wrong")))
    assert "the node says: Closed for" in said and "maintenance" in said
    assert works(f"root@127.0.0.1:{talking.port}", node.options())
    node.stop(talking)


# -- ways


def jumps(server: Server, second: Server, more: str = "") -> str:
    """`near` is reached directly, `middle` through it, `far` through `middle`, `far2` through two hosts by itself."""
    return (
        f"Host near\n HostName 127.0.0.1\n Port {server.port}\n"
        f"Host middle\n HostName localhost\n Port {second.port}\n ProxyJump near\n"
        f"Host far\n HostName ::1\n Port {server.port}\n User {GUEST}\n ProxyJump middle\n"
        f"Host plain\n HostName localhost\n Port {second.port}\n"
        f"Host far2\n HostName ::1\n Port {server.port}\n ProxyJump near,{GUEST}@plain\n{more}Host *\n User root\n"
    )


def test_jump_hosts(node: Machine, server: Server, second: Server, tmp_path: Path) -> None:
    options = configured(tmp_path, node, jumps(server, second))
    before = {s.port: node.log(s.port).count("Accepted publickey") for s in (server, second)}
    for name, peer in (("far", f"{GUEST}@[::1]:{server.port}"), ("far2", f"root@[::1]:{server.port}")):
        with connect(parse_address(name), options) as connection:
            assert connection.peer == peer
            with connection.start("cat") as channel:
                channel.send(bytes(5 << 20), 20.0)
                channel.end_of_input()
                got = 0
                while data := channel.receive(1 << 20, 20.0):
                    got += len(data)
                assert data == b"" and got == 5 << 20
    after = {s.port: node.log(s.port).count("Accepted publickey") for s in (server, second)}
    assert {port: after[port] - before[port] for port in after} == {server.port: 4, second.port: 2}
    assert f"Accepted publickey for {GUEST} from" in node.log(second.port)


def test_every_jump_host_is_checked(node: Machine, server: Server, second: Server, known: Path, tmp_path: Path) -> None:
    options = configured(tmp_path, node, jumps(server, second), known_hosts=known)
    known.write_text(f"[127.0.0.1]:{server.port} {server.host_key}\n[::1]:{server.port} {server.host_key}\n")
    said = refusal(lambda: connect(parse_address("far"), options))
    assert f"far: jump host middle: the host key of [localhost]:{second.port}" in said
    known.write_text(known.read_text() + f"[localhost]:{second.port} {server.host_key}\n")
    said = refusal(lambda: connect(parse_address("far"), options))
    assert "far: jump host middle: its host key is not the known one" in said
    known.unlink()
    with connect(parse_address("far"), configured(tmp_path, node, jumps(server, second), known_hosts=known,
                                                  accept_new_host_key=True)) as connection:  # fmt: skip
        assert [note.split(": new host key")[0] for note in connection.notes] == [
            "far: jump host near", "far: jump host middle", "far",
        ]  # fmt: skip


def test_jump_hosts_that_do_not_help(node: Machine, server: Server, second: Server, tmp_path: Path) -> None:
    text = jumps(server, second, "Host lost\n Port 1\n HostName 127.0.0.1\n ProxyJump near\n"
                 "Host round\n ProxyJump about\nHost about\n ProxyJump round\n")  # fmt: skip
    options = configured(tmp_path, node, text)
    said = refusal(lambda: connect(parse_address("lost"), options))
    assert f"lost: 127.0.0.1:1 from root@127.0.0.1:{server.port} cannot be reached" in said
    with pytest.raises(Exception, match="more than 8 jump hosts"):
        connect(parse_address("round"), options)
    closed = node.serve("AllowTcpForwarding no")
    options = configured(tmp_path, node, f"ProxyJump root@127.0.0.1:{closed.port}\n")
    said = refusal(lambda: connect(server.address(host="localhost"), options))
    assert "cannot be reached" in said and "prohibited" in said
    node.stop(closed)


def test_proxy_commands(node: Machine, server: Server, second: Server, tmp_path: Path) -> None:
    ssh = f"ssh -F /dev/null -i {node.identity} -o UserKnownHostsFile={node.known_hosts} -p {second.port} -W %h:%p"
    text = f"Host it\n HostName 127.0.0.1\n Port {server.port}\n ProxyCommand {ssh} %r@127.0.0.1\n"
    assert works("root@it", configured(tmp_path, node, text))
    # One that leaves another behind, and ignores being asked to end.
    text = text.replace("ProxyCommand ssh", "ProxyCommand sh -c 'trap : TERM HUP; sleep 600 & ssh \"$@\"; sleep 600' x")
    assert works("root@it", configured(tmp_path, node, text))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo no \033way >&2; exit 1", "no ?way"),
        ("/nonexistent/proxy", "/nonexistent/proxy"),
        ("sleep 600", "no SSH server answered"),
        ("yes no way >&2", "no SSH server answered"),
    ],
)
def test_proxy_commands_that_fail(node: Machine, tmp_path: Path, command: str, said: str) -> None:
    options = configured(tmp_path, node, f"ProxyCommand {command}\n", connect_seconds=0.7)
    assert said in refusal(lambda: connect(parse_address("root@somewhere"), options))
