# SPDX-License-Identifier: Apache-2.0
"""Probes run on candidate nodes of tests/support/sshd.py, and what must be left there: nothing but the cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from published import schema_errors
from small_probe import SECONDS
from sshd import GUEST, Machine, Server, wait_until

from probe.candidates.agent_client import Orders, SilentNode, Watcher
from probe.candidates.remote import CandidateResult, run_on
from probe.candidates.wanted_width import WantedWidth
from probe.ssh.addresses import Address
from probe.ssh.interface import SshOptions

ROOT = Path(__file__).parents[2]


class Listening(SilentNode):
    """A watcher that keeps what is said, and can do something when it is."""

    def __init__(self, react: Callable[[str, Any], None] = lambda *_: None) -> None:
        self.said: list[str] = []
        self._react = react

    def say(self, text: str) -> None:
        self.said.append(text)
        self._react("say", text)

    def sent(self, done: int, whole: int) -> None:
        self._react("sent", done)

    def measured(self, done: int, whole: int) -> None:
        self._react("measured", done)


def probed(
    machine: Machine,
    probe: Path,
    *candidates: Sequence[Address],
    jobs: int = 8,
    min_coverage: float | None = None,
    ssh: SshOptions | None = None,
    watcher: Callable[[str], Watcher] = lambda _: SilentNode(),
    wanted: WantedWidth | None = None,
    **orders: Any,
) -> list[CandidateResult]:
    """`run_on` from this process, in the machine's network; one repeat if not ordered otherwise."""
    with machine.network():
        return run_on(
            probe, candidates, ssh=ssh or machine.options(), orders=Orders(**{"repeats": 1, **orders}), jobs=jobs,
            min_coverage=min_coverage, watcher=watcher, **asdict(wanted or WantedWidth()),
        )  # fmt: skip


def guest(server: Server) -> list[Address]:
    return [server.address(GUEST)]


def root(server: Server) -> list[Address]:
    return [server.address()]


def command(machine: Machine, probe: Path, *arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """`probe run` as a process in the machine's network; it must end with `status`."""
    done = subprocess.run(client(machine, probe, *arguments), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def client(machine: Machine, probe: Path, *arguments: str | Path) -> list[str]:
    """Its command line."""
    ssh = ["--identity", machine.identity, "--known-hosts", machine.known_hosts, "--ssh-config", "/dev/null"]
    run = [sys.executable, "-m", "probe", "run", probe, *ssh, *arguments]
    return machine.command(["env", f"PYTHONPATH={ROOT}", *run])


def as_json(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What `probe run --json` says of each candidate, as its schema wants it."""
    said = json.loads(done.stdout)
    assert schema_errors("probe-run-on", said) == []
    found: list[dict[str, Any]] = said["candidates"]
    return found


def cache(machine: Machine, user: str = GUEST) -> Path:
    return machine.folder / "home" / user / ".cache" / "probe-node"


def assert_nothing_left(machine: Machine, folder: Path | None = None) -> None:
    """No process of a user, and nothing that was unpacked."""
    wait_until(lambda: not machine.users_processes(), f"the end of {machine.users_processes()}")
    for runs in [(folder or cache(machine)) / "runs", cache(machine, "root") / "runs"]:
        assert not runs.exists() or not list(runs.iterdir())


def members(machine: Machine, user: str = GUEST) -> dict[str, Path]:
    """Members that are in a user's cache."""
    return {path.name: path for path in (cache(machine, user) / "members").iterdir()}
