# SPDX-License-Identifier: Apache-2.0
"""Running a probe on candidate nodes, side by side, and what comes of it for each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from checkpoint.errors import NodeMisbehaved, NodeUnreachable, NoPrediction, PhaseFailed, ProbeError
from probe.candidates.agent_client import Answer, NodeSilent, Orders, SilentNode, Watcher, ask
from probe.candidates.connections import Connections, named, refuse_named_twice, too_late
from probe.candidates.result import RunResult, check_coverage, predict_from
from probe.candidates.time_limit import SLOWER, START_SECONDS, TimeLimit, run_seconds
from probe.candidates.wanted_width import FirstRounds, WantedWidth
from probe.formats.manifest import Manifest
from probe.formats.phase_record import PhaseRecord
from probe.node.measuring import MeasuredPhase
from probe.prediction.estimators import Prediction
from probe.prediction.target_error import NoMoreRepeats
from probe.ssh.addresses import Address, parse_address
from probe.ssh.interface import SshOptions
from reducer.unpack import open_probe

ATTEMPTS = 3
"""How often in a row a node is connected to without getting any further, when the connection is lost."""

MOST_CONNECTIONS = 20
"""And how often at all."""

_PAUSE_SECONDS = 2.0
RESULT_VERSION = 1


@dataclass(frozen=True)
class CandidateResult:
    """What came of one candidate: a result, or the error that stands in its place, never both.

    A candidate is one node, or several that were declared identical. Seconds: `transfer` of the probe to it, `probing`
    from the agent's start to its end; of several nodes the longest. `sent`: bytes, of all. `quiet`: what each node says
    of the load while it measured, at first and for further repeats.
    """

    name: str
    result: RunResult | None
    error: ProbeError | None
    transfer: float = 0.0
    probing: float = 0.0
    sent: int = 0
    early: int = 0
    quiet: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def relative_speed(self) -> float | None:
        """How many times as fast as the reference node: ET_ref over the predicted time."""
        if self.result is None:
            return None
        return self.result.manifest.reference.seconds / self.result.prediction.seconds

    def to_json(self) -> dict[str, Any]:
        """The published form (docs/json.md)."""
        said = self.result.to_json() if self.result is not None else None
        return {
            "name": self.name,
            "status": "ok" if said else "failed",
            "reason": str(self.error) if self.error is not None else "",
            "exit_code": self.error.exit_code if self.error is not None else 0,
            "relative_speed": self.relative_speed,
            "transfer_seconds": self.transfer,
            "probing_seconds": self.probing,
            "sent_bytes": self.sent,
            "early_repeats": self.early,
            "quiet": list(self.quiet),
            "notes": list(self.notes),
            "result": said,
        }


def run_on(
    path: Path | str,
    candidates: Sequence[str | Sequence[Address]],
    *,
    ssh: SshOptions | None = None,
    orders: Orders | None = None,
    jobs: int = 8,
    min_coverage: float | None = None,
    target_error: float | None = None,
    budget: float | None = None,
    best_effort: bool = False,
    watcher: Callable[[str], Watcher] = lambda _: SilentNode(),
) -> list[CandidateResult]:
    """Run the probe at `path` on every candidate, at most `jobs` of them at a time; results in the order given.

    A candidate is `[USER@]NODE[:PORT]`, or several with commas between them, or their addresses: nodes declared
    identical, of which each measures a part of the phases (thesis, section 6.2). `target_error`, `budget` and
    `best_effort` are those of `run` (probe/candidates/local.py), for each candidate; `orders.repeats` are a beginning
    then. A node that fails is an entry with its reason. Raises only what is wrong with the names, the budget or the
    probe itself: ProbeError, ProbeFileDamaged, StorageError, NoPrediction. Interrupted it ends all connections: the
    agents end by themselves.
    """
    probe = Path(path)
    groups = [parse_candidate(one) if isinstance(one, str) else tuple(one) for one in candidates]
    refuse_named_twice(address for group in groups for address in group)
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
        check_coverage(manifest, min_coverage)
        archive.verify()
    connections = Connections(ssh or SshOptions())
    chosen, wanted = orders or Orders(), WantedWidth(target_error, budget, best_effort)
    work = [_Candidate(probe, manifest, nodes, connections, chosen, wanted, watcher) for nodes in groups]
    return connections.side_by_side([partial(one.run, min_coverage) for one in work], jobs)


def parse_candidate(text: str) -> tuple[Address, ...]:
    """The addresses of one candidate, parted by commas. ProbeError for nonsense."""
    return tuple(parse_address(one.strip()) for one in text.split(","))


class _Candidate:
    def __init__(
        self, probe: Path, manifest: Manifest, nodes: Sequence[Address], connections: Connections, orders: Orders,
        wanted: WantedWidth, watcher: Callable[[str], Watcher],
    ) -> None:  # fmt: skip
        """Raises ProbeError where the budget does not hold one repeat of each phase."""
        self._probe, self._manifest, self._nodes = probe, manifest, nodes
        self._connections, self._wanted, self._watcher = connections, wanted, watcher
        self._shares = split_phases([p for p in manifest.phases if p.can_run], len(nodes))
        slowest = max(sum(p.expected_seconds for p in manifest.phases if p.id in share) for share in self._shares)
        self._orders = replace(orders, repeats=wanted.rounds(orders.repeats, slowest))
        self._size = probe.stat().st_size
        self._answers = [Answer() for _ in nodes]
        self._limits: dict[int, TimeLimit] = {}
        self._watchers: dict[int, Watcher] = {}
        self._notes: list[str] = []
        self._failures: list[ProbeError] = []
        self._later_quiet: list[dict[str, Any]] = []
        self._budget_ends = math.inf
        self.name = ", ".join(node.text for node in nodes)

    def run(self, min_coverage: float | None) -> CandidateResult:
        try:
            result, error = self._result(min_coverage), None
        except ProbeError as problem:
            result, error = None, problem
        told = [answer for answer in self._answers if answer.node]
        return CandidateResult(
            self.name,
            result,
            error,
            max((a.transfer for a in told), default=0.0),
            max((a.probing for a in told), default=0.0),
            sum(a.sent for a in told),
            sum(a.early for a in told),
            tuple(quiet for quiet in [*(a.quiet for a in told), *self._later_quiet] if quiet),
            tuple(dict.fromkeys(self._notes)),
        )

    def _result(self, min_coverage: float | None) -> RunResult:
        def predicted(measured: list[MeasuredPhase]) -> Prediction:
            return self._predicted(measured, min_coverage)

        measured, narrowed = self._wanted.reach(
            self._orders.repeats, first=lambda _: self._first(), again=self._again, predicted=predicted
        )
        used = [answer.node for answer in self._answers if answer.phases]
        granted = [found for node in used if isinstance(found := node.get("granted"), (int, float))]
        node = {**used[0], **({"granted": min(granted)} if granted else {})}
        return RunResult(str(self._probe), self._manifest, node, tuple(measured), predicted(measured), narrowed)

    def _first(self) -> FirstRounds:
        """The repeats that were ordered, of every phase that some node measured."""
        self._failures = self._measure()
        measured: dict[int, MeasuredPhase] = {}
        for answer in self._answers:
            measured.update(answer.phases)
        if self._failures and not any(phase.times for phase in measured.values()):
            raise self._failures[0]
        self._notes += [str(failure) for failure in self._failures]
        took = max((seconds_timed(answer) for answer in self._answers), default=0.0)
        if self._wanted.budget is not None:
            self._budget_ends = time.monotonic() + self._wanted.budget - took
        ordered = [measured[p.id] for p in self._manifest.phases if p.id in measured]
        # A node that measured nothing is asked no more.
        besides = max((seconds_besides(one) for one in self._answers if _able(one)), default=_LEAST_BESIDES)
        return FirstRounds(ordered, took, besides)

    def _predicted(self, measured: list[MeasuredPhase], min_coverage: float | None) -> Prediction:
        try:
            return predict_from(self._manifest, measured, min_coverage=min_coverage)
        except NoPrediction as error:
            lost = self._failures if self._left() else []
            reasons = [*(str(f) for f in lost), *(m.failure for m in measured if m.failure)]
            if not reasons:
                raise
            kind = type(lost[0]) if lost else PhaseFailed
            raise kind(f"{reasons[0]} ({error})") from error

    def _again(self, count: int) -> list[MeasuredPhase]:
        """Every phase `count` times more, by the node that measured it. Raises NoMoreRepeats, NodeMisbehaved."""
        if self._orders.cache_bytes < self._size:
            raise NoMoreRepeats("the probe would have to be sent again: give a --cache-size that holds it")
        numbers = [number for number, answer in enumerate(self._answers) if _able(answer)]
        with ThreadPoolExecutor(max_workers=len(numbers), thread_name_prefix="node") as pool:
            running = [pool.submit(self._more_on_node, number, count) for number in numbers]
            wait(running)
        errors = [error for error in (future.exception() for future in running) if error is not None]
        # What lies says nothing that counts; nor did it before.
        for error in sorted(errors, key=lambda error: not isinstance(error, NodeMisbehaved)):
            if isinstance(error, NodeMisbehaved) or not isinstance(error, ProbeError):
                raise error
            raise NoMoreRepeats(f"{error}; what was measured before that counts") from error
        return [phase for future in running for phase in future.result().values()]

    def _more_on_node(self, number: int, count: int) -> dict[int, MeasuredPhase]:
        before, left = self._answers[number], self._budget_ends - time.monotonic()
        most = min(self._limits[number].left, left + START_SECONDS)
        orders = replace(
            self._orders, repeats=count, least=0, limit_seconds=max(most, 0.0),
            lock_seconds=min(self._orders.lock_seconds, max(left, 0.0)),
        )  # fmt: skip
        answer = Answer(boot=before.boot)
        self._watchers[number].say(f"{count} more repeats of each phase")
        try:
            self._on_node(number, _able(before), orders, answer)
        finally:
            before.add_cost(answer)
        self._later_quiet.append(answer.quiet)
        if answer.boot != before.boot:
            raise NodeUnreachable(f"{self._nodes[number].text}: it was started again between repeats")
        return answer.phases

    def _measure(self) -> list[ProbeError]:
        """Have every phase measured by one of the nodes; what has failed on them, whether others could help or not."""
        failures: list[ProbeError] = []
        alive: list[int] = []
        with ThreadPoolExecutor(max_workers=len(self._nodes), thread_name_prefix="node") as pool:
            running = [pool.submit(self._first_on_node, n, share) for n, share in enumerate(self._shares)]
            for number, future in enumerate(running):
                try:
                    future.result()
                    alive.append(number)
                except ProbeError as error:
                    failures.append(error)
        for number in alive:
            # What a lost node did not do, another one of the same kind does.
            if left := self._left():
                try:
                    self._first_on_node(number, left)
                except ProbeError as error:
                    failures.append(error)
        return failures

    def _left(self) -> set[int]:
        done = {phase for answer in self._answers for phase in answer.phases}
        return {p.id for p in self._manifest.phases if p.can_run} - done

    def _first_on_node(self, number: int, phases: Collection[int]) -> None:
        """Have these phases measured by one node as ordered."""
        address, answer = self._nodes[number], self._answers[number]
        watcher = self._watchers[number] = self._watchers.get(number) or self._watcher(address.text)
        able = [p for p in self._manifest.phases if p.can_run]
        further = self._wanted.most_seconds(SLOWER * run_seconds(able, self._orders.repeats))
        limit = self._limits[number] = TimeLimit(self._manifest, self._size, self._orders, answer, further)
        watcher.say(f"at most {limit.most:.0f} s")
        self._on_node(number, phases, self._orders, answer, limit)

    def _on_node(
        self, number: int, phases: Collection[int], orders: Orders, answer: Answer, limit: TimeLimit | None = None
    ) -> None:
        """Have these phases measured by one node, connecting again where the connection is lost."""
        address, watcher = self._nodes[number], self._watchers[number]
        limit = limit or TimeLimit(self._manifest, self._size, orders, answer)
        in_vain = 0
        for attempt in range(1, MOST_CONNECTIONS + 1):
            # A node that was started again has lost what it had measured.
            wanted = set(phases) - set(answer.phases)
            if not wanted:
                return
            got = (answer.sent_members, len(answer.phases))
            reached = False
            try:
                with (
                    self._connections.to(address) as connection,
                    limit.ending(connection.close),
                    open_probe(self._probe) as archive,
                ):
                    reached = True
                    self._notes += connection.notes
                    ask(connection.start, self._probe, archive, self._manifest, wanted, orders, answer, watcher)
                watcher.say("done")
            except NodeSilent as error:
                raise named(error, address) from error
            except NodeUnreachable as error:
                if limit.left <= 0:
                    raise too_late(address, limit.most) from error
                in_vain = 1 if (answer.sent_members, len(answer.phases)) != got else in_vain + 1
                hopeless = in_vain >= ATTEMPTS or attempt == MOST_CONNECTIONS
                # What never answered will not do so now: a wrong name, a key that is not accepted.
                if hopeless or self._connections.given_up.is_set() or not (reached or answer.node):
                    raise named(error, address) from error
                watcher.say(f"{error}; connecting again")
                self._connections.given_up.wait(_PAUSE_SECONDS * in_vain)
            except NodeMisbehaved as error:
                # Nor is what it said before worth anything.
                answer.phases.clear()
                raise named(error, address) from error
            except ProbeError as error:
                raise named(error, address) from error
        raise NodeUnreachable(f"{address.text}: it is started again and again; see why, and run again")


def split_phases(phases: Sequence[PhaseRecord], nodes: int) -> list[set[int]]:
    """Ids of the phases for each of `nodes` equal nodes, so that all are done at about the same time."""
    shares: list[set[int]] = [set() for _ in range(nodes)]
    load = [0.0] * nodes
    for phase in sorted(phases, key=lambda p: p.expected_seconds, reverse=True):
        least = min(range(nodes), key=lambda n: load[n])
        shares[least].add(phase.id)
        load[least] += phase.expected_seconds + _RESTORE_SECONDS
    return shares


_RESTORE_SECONDS = 0.1
"""What restoring takes besides, about."""


def _able(answer: Answer) -> list[int]:
    """Phases that could be measured."""
    return [number for number, phase in answer.phases.items() if phase.times]


def seconds_timed(answer: Answer) -> float:
    """What the repeats that count took on the node, restoring included, as it says itself."""
    return sum(time.restore + time.warm + time.wall for phase in answer.phases.values() for time in phase.times)


def seconds_besides(answer: Answer) -> float:
    """What a further talk with the node takes beside its repeats, judged by the last: connecting, the agent's start."""
    return _LEAST_BESIDES if answer.waited else max(_LEAST_BESIDES, answer.besides)


_LEAST_BESIDES = 0.5
