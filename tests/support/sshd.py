# SPDX-License-Identifier: Apache-2.0
"""Candidate nodes for tests: real sshd servers in namespaces of their own, which leave the machine as it is.

The namespaces (network, mount, PID) are those of one machine; several servers in it are several nodes to a client.
They share its loopback, which tests can slow down or cut, and an ordinary user `guest` beside root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checkpoint.linux import CLONE_NEWNET
from probe.ssh.addresses import Address, parse_address
from probe.ssh.interface import SshOptions

GUEST: Final = "guest"
GUEST_UID: Final = 12345
FIRST_PORT: Final = 2201

_SECONDS: Final = 20.0
_BARE_COMMANDS: Final = (
    "sh", "cat", "chmod", "dd", "head", "id", "ls", "mkdir", "mv", "rm", "sleep", "test", "uname", "wc",
)  # fmt: skip
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

# Process 1 of the namespace: makes the mounts, reaps what is orphaned, and ends it all when the test's end of the
# pipe closes. It runs before the mounts, since they may cover the Python that it is.
_INIT: Final = """
import os, select, subprocess, sys
subprocess.run(["bash", "-c", *sys.argv[1:]], check=True, stdin=subprocess.DEVNULL)
os.write(1, b"ready")
while not select.select([0], [], [], 0.05)[0]:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""

_SET_UP: Final = """
set -eu
ip link set lo up
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -m 0755 /run/sshd /run/node
mount --bind "$1" /run/node
for name in passwd group shadow; do mount --bind "/run/node/etc/$name" "/etc/$name"; done
mount --bind /run/node/home /home
mount --bind /run/node/tmp /tmp
for path in "${@:2}"; do mount --bind /run/node/hidden "$path"; done
"""


@dataclass(frozen=True)
class Server:
    """One sshd: a node to the client."""

    port: int
    fingerprint: str
    """Of its host key, as ssh-keygen prints it."""
    host_key: str
    """Public key, kind and base64 text."""

    def address(self, user: str = "root", host: str = "127.0.0.1") -> Address:
        return parse_address(f"{user}@{host}:{self.port}")


class Machine:
    """Namespaces with servers in them; made by `machine`."""

    def __init__(self, folder: Path, holder: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        """Seen inside as /run/node; `home/guest` and `home/root` are the users' homes, `tmp` is /tmp."""
        self._holder = holder
        self._starters: dict[int, subprocess.Popen[bytes]] = {}
        self.known_hosts = folder / "known_hosts"
        """Holds the keys of all servers that were started."""
        self.identity = folder / "id_ed25519"
        """Private key that both users accept."""
        self._ports = iter(range(FIRST_PORT, FIRST_PORT + 1000))

    # -- servers

    def serve(
        self,
        *lines: str,
        port: int | None = None,
        prefix: Sequence[str] = (),
        key_kind: str = "ed25519",
        known: bool = True,
        bare: bool = False,
    ) -> Server:
        """Start a server; `lines` of sshd_config(5) go before the fixture's own and so win.

        `prefix` goes before its command line (such as taskset); `known`: its key is put into `known_hosts`. `bare`:
        logged-in users have a PATH with a shell's most common companions and no python3.
        """
        port = port or next(self._ports)
        key = self.folder / f"host_{port}_{key_kind}"
        if not key.exists():
            make_key(key, kind=key_kind)
        public = " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])
        own = [
            f"Port {port}",
            "ListenAddress 0.0.0.0",
            "ListenAddress ::",
            f"HostKey /run/node/{key.name}",
            f"PidFile /run/node/{port}.pid",
            "AuthorizedKeysFile /run/node/authorized_keys",
            "StrictModes no",
            "UsePAM no",
            "UseDNS no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 100",
            "LogLevel VERBOSE",
            *(["SetEnv PATH=/run/node/bare"] if bare else []),
        ]
        if bare:
            self._make_bare()
        config = self.folder / f"{port}.config"
        config.write_text("\n".join([*lines, *own]) + "\n")
        (self.folder / f"{port}.pid").unlink(missing_ok=True)
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert sshd, "openssh-server is not installed"
        with (self.folder / f"{port}.log").open("ab") as log:
            command = [*prefix, sshd, "-D", "-e", "-f", f"/run/node/{config.name}"]
            starter = subprocess.Popen(self.inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._starters[port] = starter
        wait_until(lambda: self._listens(port) or starter.poll() is not None, f"sshd on port {port}")
        assert starter.poll() is None, self.log(port)
        if known:
            with self.known_hosts.open("a") as stored:
                stored.write(f"[127.0.0.1]:{port},[::1]:{port},[localhost]:{port} {public}\n")
        shown = subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout
        return Server(port, shown.split()[1], public)

    def stop(self, server: Server, *, sessions: bool = True) -> None:
        """End a server, by default with the sessions it has: those of all servers."""
        pid = (self.folder / f"{server.port}.pid").read_text().strip()
        if sessions:
            self.kill_sessions()
        self.run(["kill", "-KILL", pid])
        self._starters.pop(server.port).wait(_SECONDS)

    def kill_sessions(self) -> None:
        """Kill the processes that serve the connections, as a crash would; what users run is left alone."""
        for pid, command in self.processes().items():
            if command.startswith("sshd:") and "[listener]" not in command:
                self.run(["kill", "-KILL", str(pid)], check=False)

    def log(self, port: int) -> str:
        return (self.folder / f"{port}.log").read_text(errors="replace")

    def options(self, **changes: object) -> SshOptions:
        """Options of a client that trusts all servers here and has the right key."""
        given: dict[str, object] = {
            "config": Path("/dev/null"),
            "known_hosts": self.known_hosts,
            "identity": self.identity,
            "connect_seconds": 15.0,
        }
        return SshOptions(**{**given, **changes})  # type: ignore[arg-type]

    # -- what is inside

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        """Command line that runs `command` as root on this machine: in its network, mounts and processes."""
        name = f"/proc/{self._holder.pid}/ns"
        enter = ["nsenter", f"--net={name}/net", f"--mount={name}/mnt", f"--pid={name}/pid_for_children", "--wd=/"]
        return [*enter, "--", *map(str, command)]

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        """Command line that runs `argv` with the network of this machine and all else as it is: a client."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--", *map(str, argv)]

    def run(self, command: Sequence[str | Path], *, check: bool = True) -> str:
        """Run a command inside; returns what it prints."""
        done = subprocess.run(
            self.inside(command), capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """This thread, and threads that it starts, have the network of this machine."""
        with (
            open("/proc/thread-self/ns/net", "rb") as before,
            open(f"/proc/{self._holder.pid}/ns/net", "rb") as there,
        ):
            _enter_network(there.fileno())
            try:
                yield
            finally:
                _enter_network(before.fileno())

    def processes(self) -> dict[int, str]:
        """Command lines by the process numbers of inside, without process 1."""
        found = {}
        # The namespace's own view of /proc has exactly its processes, those of nested namespaces included.
        for entry in Path(f"/proc/{self._holder.pid}/root/proc").iterdir():
            if not entry.name.isdigit() or entry.name == "1":
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(entry.name)] = command or f"[{(entry / 'comm').read_text().strip()}]"
        return found

    def users_processes(self) -> dict[int, str]:
        """Processes that are not those of sshd itself: what sessions started and what they left."""
        return {pid: command for pid, command in self.processes().items() if not command.startswith(("sshd:", "[sshd"))}

    # -- the link

    def limit(self, rate: str) -> None:
        """Slow the loopback down, both ways together, to a rate such as 1mbit (tc-tbf(8))."""
        self.run(["ip", "link", "set", "lo", "mtu", "1500"])
        bucket = ["tbf", "rate", rate, "burst", "16kb", "limit", "256kb"]
        self.run(["tc", "qdisc", "replace", "dev", "lo", "root", *bucket])

    def unlimit(self) -> None:
        self.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=False)
        self.run(["ip", "link", "set", "lo", "mtu", "65536"])

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told: the link is down."""
        self.run(["ip", "link", "set", "lo", "down"])

    def mend(self) -> None:
        self.run(["ip", "link", "set", "lo", "up"])

    # --

    def close(self) -> None:
        assert self._holder.stdin
        self._holder.stdin.close()
        try:
            self._holder.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        for starter in self._starters.values():
            starter.wait(_SECONDS)

    def _listens(self, port: int) -> bool:
        with self.network(), socket.socket() as trial:
            trial.settimeout(1.0)
            return trial.connect_ex(("127.0.0.1", port)) == 0

    def _make_bare(self) -> None:
        bare = self.folder / "bare"
        if bare.exists():
            return
        bare.mkdir()
        for name in _BARE_COMMANDS:
            (bare / name).symlink_to(shutil.which(name) or f"/bin/{name}")


@contextlib.contextmanager
def machine(folder: Path, *, hide: Sequence[str | Path] = ()) -> Iterator[Machine]:
    """A machine in a new folder, without servers yet; all its processes end with it.

    Files in `hide` cannot be executed there (an empty file covers them), which is how a node loses its python3.
    """
    folder.mkdir()
    _make_files(folder)
    make_key(folder / "id_ed25519")
    shutil.copy(folder / "id_ed25519.pub", folder / "authorized_keys")
    (folder / "known_hosts").touch()
    covered = [str(Path(path).resolve()) for path in hide]
    holder = subprocess.Popen(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
         "--", sys.executable, "-c", _INIT, _SET_UP, "set_up", str(folder), *covered],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    made = Machine(folder, holder)
    try:
        assert holder.stdout
        assert holder.stdout.read(5) == b"ready", "the namespaces could not be set up"
        yield made
    finally:
        made.close()
        assert holder.stdout
        holder.stdout.close()


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", path], check=True)


def wait_until(condition: object, what: str, seconds: float = _SECONDS) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


def _make_files(folder: Path) -> None:
    """What the machine has of its own: users, their homes, a folder for temporary files."""
    etc = folder / "etc"
    etc.mkdir()
    passwd = [line for line in Path("/etc/passwd").read_text().splitlines() if _name(line) not in ("root", GUEST)]
    passwd += ["root:x:0:0:root:/home/root:/bin/sh", f"{GUEST}:x:{GUEST_UID}:{GUEST_UID}::/home/{GUEST}:/bin/sh"]
    if not any(_name(line) == "sshd" for line in passwd):
        passwd.append("sshd:x:64998:65534::/run/sshd:/usr/sbin/nologin")
    group = [line for line in Path("/etc/group").read_text().splitlines() if _name(line) != GUEST]
    shadow = [line for line in Path("/etc/shadow").read_text().splitlines() if _name(line) not in ("root", GUEST)]
    shadow += ["root:*:19000:0:99999:7:::", f"{GUEST}:*:19000:0:99999:7:::"]
    (etc / "passwd").write_text("\n".join(passwd) + "\n")
    (etc / "group").write_text("\n".join([*group, f"{GUEST}:x:{GUEST_UID}:"]) + "\n")
    (etc / "shadow").write_text("\n".join(shadow) + "\n")
    (etc / "shadow").chmod(0o600)
    for name, owner in (("root", 0), (GUEST, GUEST_UID)):
        (folder / "home" / name).mkdir(parents=True)
        os.chown(folder / "home" / name, owner, owner)
        (folder / "home" / name).chmod(0o700)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    (folder / "hidden").touch()
    folder.chmod(0o755)


def _name(line: str) -> str:
    return line.split(":")[0]


def _enter_network(descriptor: int) -> None:
    if _LIBC.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
