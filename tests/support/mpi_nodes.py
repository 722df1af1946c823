# SPDX-License-Identifier: Apache-2.0
"""Two nodes that share no folder: namespaces of this machine, joined by a network of their own, the second with sshd.

The first, `na`, sees this machine's files. The second, `nb`, has its own /tmp, shared memory and home, and a clock that
is a day ahead.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.paths import cache_dir

AHEAD = 86_400
"""Seconds that the second node's monotonic clock is ahead."""

# The folder is copied, since the second node's /tmp covers it.
_SET_UP = """
set -eu
name=$1 folder=$2 home=$3
hostname "$name"
ip link set lo up
mount --bind "$folder/hosts" /etc/hosts
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -m 0755 /run/sshd
if [ "$name" = nb ]; then
    cp -a "$folder" /run/kept
    cp -aL "$folder/../programs" /run/programs
    for place in /tmp /dev/shm /root; do mount -t tmpfs -o mode=1777 tmpfs "$place"; done
    chmod 0700 /root
    mkdir -p "$folder" "$folder/../programs"
    if [ -d "$home" ]; then mount -t tmpfs tmpfs "$home"; fi
    cp -a /run/kept/. "$folder"
    cp -a /run/programs/. "$folder/../programs"
    /usr/sbin/sshd -e -f "$folder/sshd_config" -E "$folder/log"
fi
"""

_INIT = """
import os, subprocess, sys
subprocess.run(["bash", "-c", sys.argv[1], *sys.argv[1:]], check=True, stdin=subprocess.DEVNULL)
os.write(1, b"ready")
os.read(0, 1)
"""

_SSHD = """
Port 22
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/id.pub
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
"""

_SSH = """#!/bin/sh
exec /usr/bin/ssh -F none -i {folder}/id -o BatchMode=yes -o UserKnownHostsFile={folder}/known "$@"
"""


@dataclass(frozen=True)
class MpiNodes:
    """Both nodes; made by `two_nodes`. programs: the folder that both have, each its own copy, as it was at first."""

    programs: Path
    first: int
    second: int
    path: Path

    def inside(self, pid: int, command: Sequence[str | Path]) -> list[str]:
        kinds = ("net", "mnt", "uts", "ipc", "pid", "time")
        return ["nsenter", *(f"--{_LONG[kind]}=/proc/{pid}/ns/{kind}" for kind in kinds), "--", *map(str, command)]

    def run(
        self, *command: str | Path, on: int = 0, cwd: Path | None = None, seconds: int = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the first node, or on the one with that process; status 124 where it took too long."""
        given = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", **more}
        asked = [
            "timeout",
            "-s",
            "INT",
            "-k",
            "10",
            str(seconds),
            "sh",
            "-c",
            'cd "$0" && exec "$@"',
            cwd or self.programs,
            *command,
        ]
        return subprocess.run(
            self.inside(on or self.first, asked), capture_output=True, text=True, env=given, stdin=subprocess.DEVNULL
        )

    def output(self, pid: int, script: str, *words: str | Path) -> str:
        """What a shell script prints on the node with that process."""
        done = self.run("sh", "-c", script, "sh", *words, on=pid, cwd=Path("/"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def on_second(self, script: str, *words: str | Path) -> str:
        return self.output(self.second, script, *words)


_LONG = {"net": "net", "mnt": "mount", "uts": "uts", "ipc": "ipc", "pid": "pid", "time": "time"}


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[MpiNodes]:
    """The nodes, with copies of `folder`/programs, which must be there; they and all their processes end together."""
    keys = folder / "keys"
    (keys / "bin").mkdir(parents=True)
    for name in ("id", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    (keys / "hosts").write_text("127.0.0.1 localhost\n10.91.0.1 na\n10.91.0.2 nb\n")
    (keys / "known").write_text(f"nb,10.91.0.2 {(keys / 'host.pub').read_text()}")
    (keys / "sshd_config").write_text(_SSHD.format(folder=keys))
    (keys / "bin" / "ssh").write_text(_SSH.format(folder=keys))
    (keys / "bin" / "ssh").chmod(0o755)
    with _node("na", keys, 0) as first, _node("nb", keys, AHEAD) as second:
        link = ["ip", "link", "add", "ve0", "netns", str(first), "type", "veth", "peer", "name", "ve0"]
        subprocess.run([*link, "netns", str(second)], check=True)
        made = MpiNodes(folder / "programs", first, second, keys / "bin")
        for number, pid in enumerate((first, second), 1):
            for words in (["addr", "add", f"10.91.0.{number}/24", "dev", "ve0"], ["link", "set", "ve0", "up"]):
                subprocess.run(made.inside(pid, ["ip", *words]), check=True)
        for pid in (first, second):
            made.output(pid, 'until [ "$(cat /sys/class/net/ve0/operstate)" = up ]; do sleep 0.02; done')
        yield made


@contextlib.contextmanager
def _node(name: str, keys: Path, ahead: int) -> Iterator[int]:
    """A node's first process, which all others end with."""
    apart = ["--net", "--mount", "--uts", "--ipc", "--pid", "--time", "--monotonic", str(ahead)]
    holder = subprocess.Popen(
        ["unshare", *apart, "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--",
         sys.executable, "-c", _INIT, _SET_UP, name, str(keys), str(cache_dir())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.read(5) == b"ready", f"{name} could not be set up"
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        yield int(children[0])
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(20)
