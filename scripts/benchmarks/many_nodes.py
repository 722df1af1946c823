# SPDX-License-Identifier: Apache-2.0
"""Eight nodes driven by one prober, round after round: real servers on this machine, one processor each.

Times mean nothing here, since the nodes share this machine's processors; what counts is that nothing fails and nothing
is left: processes, mounts, folders, locks there; threads, descriptors and temporary files here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sshd import GUEST, Machine, machine

from benchmarks.programs import OWN
from probe import BuildOptions, build
from probe.candidates.agent_client import Orders
from probe.candidates.remote import run_on
from probe.selection.select import SelectionOptions

NODES = 8
_SETTLE_SECONDS = 5.0


def run(rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Probe all nodes `rounds` times: the record, {failures: reasons and how often, left: what was, by kind, ...}."""
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="many-nodes-") as name:
        # What other programs leave in the usual folder is none of ours.
        own = Path(name) / "tmp"
        own.mkdir()
        tempfile.tempdir = str(own)
        subprocess.run(["make", "-s", "-C", str(OWN.parent)], check=True)
        probe = Path(name) / "sorter.probe"
        build(
            [str(OWN / "sorter"), "1"],
            probe,
            options=BuildOptions(interval=0.01, selection=SelectionOptions(max_phases=4)),
        )
        failures: Counter[str] = Counter()
        seconds, sent, left = [], [], Counter[str]()
        with machine(Path(name) / "machine") as made:
            servers = [made.serve(prefix=["taskset", "-c", str(cpus[n % len(cpus)])]) for n in range(NODES)]
            before = _there(made) | _here()
            for number in range(1, rounds + 1):
                begun = time.monotonic()
                with made.network():
                    found = run_on(
                        probe, [[server.address(GUEST)] for server in servers], ssh=made.options(),
                        orders=Orders(repeats=1), jobs=NODES,
                    )  # fmt: skip
                seconds.append(time.monotonic() - begun)
                sent.append(sum(one.sent for one in found))
                failures.update(str(one.error) for one in found if one.error is not None)
                left.update(_more(before, lambda: _there(made) | _here()))
                if number % 10 == 0:
                    say(f"bench: {number} rounds, {failures.total()} failures, {left.total()} things left")
    return {
        "name": "many-nodes",
        "nodes": NODES,
        "rounds": rounds,
        "failures": dict(failures),
        "left": dict(left),
        "round_seconds": statistics.median(seconds),
        "first_sent": sent[0],
        "later_sent": statistics.median(sent[1:] or sent),
    }


def _there(made: Machine) -> set[tuple[str, str]]:
    """Everything of ours on the nodes, as (kind, name)."""
    found = {("process", str(pid)) for pid in made.users_processes()}
    found |= {("mount", line) for line in made.run(["cat", "/proc/1/mountinfo"]).splitlines()}
    found |= {("lock", line) for line in made.run(["cat", "/proc/net/unix"]).splitlines() if "probe-measuring" in line}
    node = made.folder / "home" / GUEST / ".cache" / "probe-node"
    for folder, kind in ((node / "runs", "folder"), (made.folder / "tmp", "temporary file")):
        found |= {(kind, path.name) for path in (folder.iterdir() if folder.exists() else ())}
    members = node / "members"
    return found | {
        ("part", path.name) for path in (members.iterdir() if members.exists() else ()) if "part" in path.name
    }


def _here() -> set[tuple[str, str]]:
    """Threads, sockets and pipes, and temporary files of this process."""
    found = {("thread", thread.name) for thread in threading.enumerate()}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(("descriptor", str(link.readlink())))
        except OSError:
            continue
    return found | {("temporary file here", path.name) for path in Path(tempfile.gettempdir()).glob("probe-*")}


def _more(before: set[tuple[str, str]], now: Callable[[], set[tuple[str, str]]]) -> list[str]:
    """Kinds of what is there that was not, once it has had the time to go."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (left := now() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{kind} {name}" for kind, name in left]
