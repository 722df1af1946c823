# SPDX-License-Identifier: Apache-2.0
"""Probes over links that are slow or break, and agents that are killed: nothing is sent twice, nothing stays behind."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import Listening, assert_nothing_left, cache, client, guest, members, probed
from small_probe import SmallProbe, small_probe
from sshd import Machine, Server, machine, wait_until

import probe.candidates.remote
from checkpoint.errors import INTERRUPTED_EXIT_CODE, NodeUnreachable
from probe.candidates import agent_file
from probe.candidates.agent_file import NODE_MODULES
from probe.candidates.remote import CandidateResult
from probe.formats.manifest import Manifest
from probe.node.agent import _phase_members
from reducer.unpack import open_probe

_SLOW = "40mbit"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Machine, Server]]:
    with machine(tmp_path / "machine") as made:
        yield made, made.serve()


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.candidates.remote, "_PAUSE_SECONDS", 0.2)


class Once:
    """Calls what is given, in another thread, the first time that so much has happened; with `always` each time."""

    def __init__(self, kind: str, least: int, action: Any, always: bool = False) -> None:
        self._kind, self._least, self._action, self._always = kind, least, action, always
        self._begun: list[threading.Thread] = []
        self.watcher = Listening(self._happened)

    def _happened(self, kind: str, value: Any) -> None:
        if kind == "say" and value == "agent is running" and self._always:
            self._least = 0
        if kind == self._kind and value >= self._least and (not self._begun or self._always):
            self._begun.append(threading.Thread(target=self._action))
            self._begun[-1].start()

    def join(self) -> None:
        assert self._begun, "it has not happened"
        for thread in self._begun:
            thread.join()


def agents(made: Machine) -> list[int]:
    """Agents that serve a prober, not those that restore for them."""
    return [
        pid for pid, command in made.users_processes().items() if command.endswith("/probe-node") and ".pyz" in command
    ]


def kill_agents(made: Machine) -> None:
    made.run(["kill", "-KILL", *map(str, agents(made))], check=False)


def assert_right(found: CandidateResult) -> None:
    assert found.result is not None, found.error
    # Built on a busy machine, a probe covers a little less than the whole run.
    assert found.result.prediction.coverage == pytest.approx(found.result.manifest.coverage)
    assert all(phase.times for phase in found.result.phases)


def some(small: SmallProbe) -> int:
    """Bytes that have gone when something happens: half the probe, which is larger or smaller by its phases."""
    return small.path.stat().st_size // 2


def runs(made: Machine) -> list[Path]:
    return list((cache(made) / "runs").iterdir())


def test_a_lost_connection_is_made_again_and_the_transfer_goes_on(
    node: tuple[Machine, Server], small: SmallProbe
) -> None:
    made, server = node
    made.limit(_SLOW)

    def lose() -> None:
        made.stop(server)
        made.serve(port=server.port)

    losing = Once("sent", some(small), lose)
    (found,) = probed(made, small.path, guest(server), watcher=lambda _: losing.watcher)
    losing.join()
    assert_right(found)
    assert any("connecting again" in said for said in losing.watcher.said), losing.watcher.said
    size = small.path.stat().st_size
    # All of it would go twice otherwise, or at least what had been sent.
    assert found.sent < size + some(small) // 4, (found.sent, size)
    assert_nothing_left(made)


def test_the_first_phase_runs_before_the_last_byte_is_there(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    made.limit("20mbit")
    (found,) = probed(made, small.path, guest(server))
    assert_right(found)
    assert found.result is not None and found.early > 0 and found.transfer > 0.5
    # Repeats made meanwhile are told and do not count.
    counted = sum(len(phase.times) for phase in found.result.phases)
    assert counted + found.early <= found.quiet[0]["repeats"]
    assert len(found.result.phases) <= counted


def test_phases_of_a_later_group_may_still_arrive(
    node: tuple[Machine, Server], small: SmallProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe of more than fits on the disk at once: what is measured meanwhile waits for the rest, and then counts."""
    for name in (*NODE_MODULES, "probe/node/__main__.py"):
        (tmp_path / "ours" / name).parent.mkdir(parents=True, exist_ok=True)
        text = (agent_file.ROOT / name).read_text().replace("GROUP_BYTES = 1 << 30", "GROUP_BYTES = 1")
        (tmp_path / "ours" / name).write_text(text)
    agent_file.agent_file.cache_clear()
    monkeypatch.setattr(agent_file, "ROOT", tmp_path / "ours")
    made, server = node
    made.limit("20mbit")
    try:
        (found,) = probed(made, small.path, guest(server))
    finally:
        agent_file.agent_file.cache_clear()
    assert_right(found)
    assert 0 < found.early < len(found.result.phases if found.result else ())
    assert_nothing_left(made)


def test_members_are_sent_in_the_order_in_which_they_are_needed(small: SmallProbe) -> None:
    with open_probe(small.path) as archive:
        manifest = Manifest.from_json(archive.manifest)
        order = [p.id for p in manifest.phases if p.can_run]
        wanted = _phase_members(archive, manifest, frozenset(order))
        for earlier, later in itertools.pairwise(order):
            assert wanted.index(f"phase/{earlier}/pages") < wanted.index(f"phase/{later}/images")
        for phase in order:
            for other in archive.phases_shared(phase):
                assert wanted.index(f"phase/{other}/pages") < wanted.index(f"phase/{phase}/pages")
        last = order[-1]
        needed = {f"phase/{other}/pages" for other in [*archive.phases_shared(last), last]}
        alone = _phase_members(archive, manifest, frozenset([last]))
        assert {name for name in alone if name.endswith("/pages")} == needed


def test_a_connection_lost_for_good_ends_on_both_sides(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    cutting = Once("measured", 1, made.cut)
    begun = time.monotonic()
    (found,) = probed(
        made, small.path, guest(server), repeats=200, silence_seconds=2.0, ssh=made.options(connect_seconds=2.0),
        watcher=lambda _: cutting.watcher,
    )  # fmt: skip
    cutting.join()
    assert isinstance(found.error, NodeUnreachable) and found.result is None
    assert time.monotonic() - begun < 40
    # The agent noticed by itself: the link is still down.
    assert_nothing_left(made)


def test_what_starts_the_agent_does_not_wait_for_ever(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    made.limit("200kbit")

    def cut_soon() -> None:
        wait_until(lambda: any("b64decode" in command for command in made.users_processes().values()), "the start")
        made.cut()

    cutting = threading.Thread(target=cut_soon)
    cutting.start()
    (found,) = probed(
        made, small.path, guest(server), silence_seconds=2.0, ssh=made.options(connect_seconds=5.0)
    )  # fmt: skip
    cutting.join()
    assert isinstance(found.error, NodeUnreachable)
    assert_nothing_left(made)


@pytest.mark.parametrize("always", [False, True])
def test_an_agent_that_is_killed_while_it_measures(
    node: tuple[Machine, Server], small: SmallProbe, always: bool
) -> None:
    made, server = node
    killing = Once("measured", 3, lambda: kill_agents(made), always)
    (found,) = probed(made, small.path, guest(server), repeats=8, watcher=lambda _: killing.watcher)
    killing.join()
    assert any("connecting again" in said for said in killing.watcher.said), killing.watcher.said
    # What it restored with died with it.
    wait_until(lambda: not made.users_processes(), f"the end of {made.users_processes()}")
    if always:
        assert isinstance(found.error, NodeUnreachable) and "the agent was lost" in str(found.error)
        assert len(runs(made)) == 1, "the last one had nobody who would take its folder away"
        (found,) = probed(made, small.path, guest(server))
    assert_right(found)
    assert_nothing_left(made)


def test_what_a_killed_agent_had_received_is_used(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    made.limit(_SLOW)
    killing = Once("sent", some(small), lambda: kill_agents(made))
    (found,) = probed(made, small.path, guest(server), watcher=lambda _: killing.watcher)
    killing.join()
    assert_right(found)
    assert found.sent < small.path.stat().st_size + some(small) // 4
    assert not [name for name in members(made) if "part" in name]
    assert_nothing_left(made)


def test_a_member_that_was_damaged_on_the_disk_is_sent_again(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    (found,) = probed(made, small.path, guest(server))
    assert_right(found)
    damaged = max(members(made).values(), key=lambda path: path.stat().st_size)
    size, owner = damaged.stat().st_size, damaged.stat().st_uid
    with damaged.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(8))
    (found,) = probed(made, small.path, guest(server))
    assert_right(found)
    assert size <= found.sent < size + 50_000
    assert members(made)[damaged.name].stat().st_uid == owner


def test_an_interrupted_run_leaves_nothing_running(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    probing = subprocess.Popen(
        client(made, small.path, "--on", f"guest@127.0.0.1:{server.port}", "--repeat", "1000"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert probing.stderr
    with probing:
        said = iter(probing.stderr)
        assert any("measured" in line for line in said)
        probing.send_signal(signal.SIGINT)
        begun = time.monotonic()
        rest = "".join(said)
        assert probing.wait(30) == INTERRUPTED_EXIT_CODE, rest
    assert time.monotonic() - begun < 15 and "Traceback" not in rest
    assert_nothing_left(made)


def test_a_client_that_is_killed_leaves_nothing_running(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    probing = subprocess.Popen(
        client(made, small.path, "--on", f"guest@127.0.0.1:{server.port}", "--repeat", "1000"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert probing.stderr
    with probing:
        assert any("measured" in line for line in probing.stderr)
        probing.kill()
    assert_nothing_left(made)


def test_folders_that_their_owner_may_not_enter_are_taken_away(node: tuple[Machine, Server], small: SmallProbe) -> None:
    made, server = node
    stale = cache(made) / "runs" / "run-killed"
    inner = stale / "work" / "phase-1" / "0w" / "work"
    inner.mkdir(parents=True)
    (stale / "lock").touch()
    (cache(made) / "runs" / "run-without-a-lock").mkdir()
    outside = made.folder / "home" / "guest" / "mine"
    outside.mkdir()
    (stale / "work" / "link").symlink_to("/home/guest/mine")
    for path in [
        made.folder / "home" / "guest" / ".cache",
        *(made.folder / "home" / "guest" / ".cache").rglob("*"),
        outside,
    ]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o700)
    outside.chmod(0o500)
    inner.chmod(0)
    (found,) = probed(made, small.path, guest(server))
    assert_right(found)
    assert_nothing_left(made)
    assert outside.stat().st_mode & 0o777 == 0o500
    shutil.rmtree(outside)
