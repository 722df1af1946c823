# SPDX-License-Identifier: Apache-2.0
"""Several nodes at once: identical ones that share the phases, many side by side, and phases that fail on some."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from candidate_runs import Listening, as_json, assert_nothing_left, command, guest, probed
from small_probe import SmallProbe, small_probe
from sshd import GUEST, Machine, Server, machine

import probe.candidates.remote
from checkpoint.errors import NodeUnreachable, NoPrediction, PhaseFailed, ProbeError
from checkpoint.restore.criu_restore import RegionTime
from probe.candidates.remote import CandidateResult, run_on, split_phases
from probe.candidates.result import predict_from
from probe.formats.manifest import Manifest
from probe.formats.phase_record import DIRECT, PhaseRecord
from probe.formats.reference import Reference
from probe.node.measuring import MeasuredPhase
from probe.ssh.addresses import Address, parse_address
from reducer.member_table import HEADER, HEADER_SIZE
from reducer.unpack import open_probe


@dataclass(frozen=True)
class Nodes:
    machine: Machine
    servers: list[Server]

    def pair(self) -> list[Address]:
        """Two nodes of one processor each, one used by the guest, one by root."""
        return [self.servers[0].address(GUEST), self.servers[1].address()]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    cpus = sorted(os.sched_getaffinity(0))
    with machine(tmp_path_factory.mktemp("nodes") / "machine") as made:
        pinned = [["taskset", "-c", str(cpus[number % len(cpus)])] for number in range(8)]
        yield Nodes(made, [made.serve(prefix=prefix) for prefix in pinned])


@pytest.fixture(scope="module")
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.candidates.remote, "_PAUSE_SECONDS", 0.2)


def manifest_of(path: Path) -> Manifest:
    with open_probe(path) as archive:
        return Manifest.from_json(archive.manifest)


def with_front(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The same probe with another manifest."""
    data = source.read_bytes()
    magic, version, size, whole = HEADER.unpack_from(data)
    document = json.loads(data[HEADER_SIZE : HEADER_SIZE + size])
    change(document["manifest"])
    front = json.dumps(document).encode("ascii")
    head = HEADER.pack(magic, version, len(front), whole - size + len(front))
    target.write_bytes(head + hashlib.sha256(head + front).digest() + front + data[HEADER_SIZE + size :])
    return target


def failing(small: SmallProbe, target: Path, which: Callable[..., PhaseRecord]) -> tuple[Path, int]:
    """The small probe with one phase whose markers fire in another order than it says, and that phase's id."""
    chosen = which(manifest_of(small.path).phases, key=lambda p: p.time_share)

    def swap(manifest: dict[str, Any]) -> None:
        (phase,) = (p for p in manifest["phases"] if p["id"] == chosen.id)
        # Not the event of its warm-up: a phase at the beginning of the run has none, and starts with that one.
        events = phase["events"]
        events["start"], events["end"] = events["end"], events["start"]

    return with_front(small.path, target, swap), chosen.id


def test_a_phase_that_fails_lowers_coverage_and_is_told(nodes: Nodes, small: SmallProbe, tmp_path: Path) -> None:
    path, lost = failing(small, tmp_path / "one.probe", min)
    (found,) = probed(nodes.machine, path, guest(nodes.servers[0]), min_coverage=0.5)
    assert found.result is not None, found.error
    share = next(p.time_share for p in found.result.manifest.phases if p.id == lost)
    kept = found.result.manifest.coverage - share
    assert found.result.prediction.coverage == pytest.approx(kept)
    assert [p.phase for p in found.result.phases if not p.times] == [lost]
    assert any(f"phases [{lost}] were not measured" in warning for warning in found.result.warnings)
    node = f"guest@127.0.0.1:{nodes.servers[0].port}"
    shown = command(nodes.machine, path, "--on", node, "--repeat", "1", "-q", "--min-coverage", "0.5").stdout
    assert f"{node}: failed: phase {lost}: markers fired out of order" in shown and f"{kept:.1%}" in shown
    assert_nothing_left(nodes.machine)


def _noisy(seconds: float, phase: int) -> tuple[float, ...]:
    """Three repeats around `seconds`; those of one round differ from phase to phase, or rounds had noise in common."""
    repeats = (0.95 * seconds, seconds, 1.05 * seconds)
    return (*repeats[phase % 3 :], *repeats[: phase % 3])


def _evenly_noisy(phase: PhaseRecord) -> PhaseRecord:
    repeats = _noisy(statistics.median(phase.direct.cpu), phase.id)
    return replace(phase, direct=replace(phase.direct, wall=repeats, cpu=repeats))


def _steady(reference: Reference) -> Reference:
    wall, cpu = ((statistics.median(runs),) * len(runs) for runs in (reference.wall, reference.cpu))
    return replace(reference, wall=wall, cpu=cpu, voted=(), voted_error=(), voted_noise=())


def test_a_phase_that_fails_widens_the_interval(small: SmallProbe) -> None:
    manifest = manifest_of(small.path)
    # Equal ratios and equal noise: were they different, the phase lost might be the one that made the node look mixed,
    # or the one with the noisiest repeats on the reference node. Beside full runs that differ a phase is little.
    manifest = replace(
        manifest, phases=tuple(map(_evenly_noisy, manifest.phases)), reference=_steady(manifest.reference)
    )
    seconds = {p.id: 1.3 * statistics.median(p.restored(DIRECT).cpu) for p in manifest.phases}
    times = {n: tuple(RegionTime(t, t, 0.0, 0.0) for t in _noisy(s, n)) for n, s in seconds.items()}
    whole = [MeasuredPhase(n, t, restorer=DIRECT) for n, t in times.items()]
    least = min(manifest.phases, key=lambda p: p.time_share).id
    part = [MeasuredPhase(m.phase, (), "it failed") if m.phase == least else m for m in whole]
    widths = []
    for measured in (whole, part):
        found = predict_from(manifest, measured, min_coverage=0.0)
        widths.append(found.high / found.low)
    assert widths[1] > widths[0]


def test_below_the_least_coverage_there_is_no_number(nodes: Nodes, small: SmallProbe, tmp_path: Path) -> None:
    path, lost = failing(small, tmp_path / "one.probe", max)
    node = f"guest@127.0.0.1:{nodes.servers[0].port}"
    done = command(nodes.machine, path, "--on", node, "--repeat", "1", "-q", "--json", status=PhaseFailed.exit_code)
    (said,) = as_json(done)
    assert said["result"] is None and said["status"] == "failed" and said["relative_speed"] is None
    assert f"phase {lost}: markers fired out of order" in said["reason"] and "90.0%" in said["reason"]
    (found,) = probed(nodes.machine, path, guest(nodes.servers[0]), min_coverage=0.0)
    assert found.result is not None and found.result.prediction.coverage <= 0.75
    with pytest.raises(NoPrediction):
        probed(nodes.machine, with_front(path, tmp_path / "two", drop_phase(lost)), guest(nodes.servers[0]))


def drop_phase(number: int) -> Callable[[dict[str, Any]], None]:
    def drop(manifest: dict[str, Any]) -> None:
        manifest["phases"] = [p for p in manifest["phases"] if p["id"] != number]

    return drop


def test_identical_nodes_share_the_phases(nodes: Nodes, small: SmallProbe) -> None:
    said: dict[str, Listening] = {}
    (found,) = probed(nodes.machine, small.path, nodes.pair(), watcher=lambda name: said.setdefault(name, Listening()))
    assert found.result is not None, found.error
    first, second = nodes.pair()
    assert found.name == f"{first.text}, {second.text}" and set(said) == {first.text, second.text}
    manifest = manifest_of(small.path)
    assert [p.phase for p in found.result.phases] == [p.id for p in manifest.phases]
    assert found.result.prediction.coverage == pytest.approx(manifest.coverage)
    # Each did a part, and none did what the other one did: a repeat for each phase, but for those disturbed.
    assert len(found.quiet) == 2 and all(quiet["repeats"] > 0 for quiet in found.quiet)
    counted = sum(len(p.times) for p in found.result.phases)
    disturbed = sum(quiet["disturbed"] for quiet in found.quiet)
    assert sum(quiet["repeats"] for quiet in found.quiet) - found.early - disturbed <= counted
    assert not found.notes
    assert_nothing_left(nodes.machine)


def test_phases_are_divided_by_what_they_take(small: SmallProbe) -> None:
    phases = manifest_of(small.path).phases
    for count in (1, 2, 3, 4, 7):
        shares = split_phases(phases, count)
        assert len(shares) == count and sorted(n for share in shares for n in share) == sorted(p.id for p in phases)
        assert max(map(len, shares)) <= -(-len(phases) // count)


def test_one_of_two_does_what_a_dead_one_cannot(nodes: Nodes, small: SmallProbe) -> None:
    dead = parse_address("guest@127.0.0.1:9")
    (found,) = probed(nodes.machine, small.path, [dead, nodes.servers[1].address(GUEST)])
    assert found.result is not None, found.error
    assert found.result.prediction.coverage == pytest.approx(found.result.manifest.coverage) and len(found.quiet) == 1
    # Nobody is to think that both were measured.
    assert any(note.startswith("guest@127.0.0.1:9: ") for note in found.notes), found.notes
    (none,) = probed(nodes.machine, small.path, [dead, parse_address("root@127.0.0.1:9")])
    assert isinstance(none.error, NodeUnreachable) and none.result is None
    assert_nothing_left(nodes.machine)


def test_one_of_two_does_what_another_did_not_finish(nodes: Nodes, small: SmallProbe) -> None:
    made = nodes.machine
    first, _ = nodes.pair()
    killing: list[threading.Thread] = []

    def kill() -> None:
        lines = made.users_processes().items()
        guests = [str(pid) for pid, line in lines if line.endswith("/home/guest/.cache/probe-node")]
        made.run(["kill", "-KILL", *guests], check=False)

    def react(kind: str, _: Any) -> None:
        if kind == "measured":
            killing.append(threading.Thread(target=kill))
            killing[-1].start()

    watchers = {first.text: Listening(react)}
    (found,) = probed(
        made, small.path, nodes.pair(), repeats=5, watcher=lambda name: watchers.setdefault(name, Listening())
    )  # fmt: skip
    for thread in killing:
        thread.join()
    assert found.result is not None, found.error
    assert found.result.prediction.coverage == pytest.approx(found.result.manifest.coverage)
    assert all(phase.times for phase in found.result.phases)
    assert any(note.startswith(first.text) for note in found.notes), found.notes
    # The next one takes away what the killed one left.
    (again,) = probed(made, small.path, guest(nodes.servers[0]))
    assert again.result is not None
    assert_nothing_left(made)


def test_a_file_names_nodes_and_those_that_are_identical(nodes: Nodes, small: SmallProbe, tmp_path: Path) -> None:
    first, second, third = (f"guest@127.0.0.1:{server.port}" for server in nodes.servers[:3])
    hosts = tmp_path / "hosts"
    hosts.write_text(f"# of the lab\n\n{first}, {second}  # identical\n{third}\n")
    done = command(nodes.machine, small.path, "--hosts", hosts, "--repeat", "1", "--json", "-q")
    assert [said["name"] for said in as_json(done)] == [f"{first}, {second}", third]
    assert {said["status"] for said in as_json(done)} == {"ok"}
    split = command(nodes.machine, small.path, "--split", f"{first},{second}", "--repeat", "1", "-q")
    assert split.stdout.splitlines()[1].startswith(f"{first}, {second} ")
    assert_nothing_left(nodes.machine)


def test_a_node_named_twice_is_refused(nodes: Nodes, small: SmallProbe, tmp_path: Path) -> None:
    for names in (["node1", "node1"], ["node1,node1"], ["u@n:22,node1", "U@n", "u@N:022"]):
        with pytest.raises(ProbeError, match="is named twice"):
            run_on(small.path, names)
    hosts = tmp_path / "hosts"
    hosts.write_text("node1\nnode2:22\n")
    done = command(nodes.machine, small.path, "--on", "node1", "--hosts", hosts, status=ProbeError.exit_code)
    assert "node1 is named twice" in done.stderr


def test_eight_nodes_side_by_side(nodes: Nodes, small: SmallProbe) -> None:
    """A hundred rounds of it are `scripts/bench many`."""
    found: list[CandidateResult] = probed(nodes.machine, small.path, *(guest(server) for server in nodes.servers))
    assert [result.name for result in found] == [server.address(GUEST).text for server in nodes.servers]
    for result in found:
        assert result.result is not None, result.error
        assert result.result.prediction.coverage == pytest.approx(result.result.manifest.coverage)
    assert_nothing_left(nodes.machine)
