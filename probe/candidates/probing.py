# SPDX-License-Identifier: Apache-2.0
"""Running a probe on candidate nodes, side by side, and what comes of it for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint.errors import NodeUnreachable, NoPrediction, PhaseFailed, ProbeError
from probe.candidates.addresses import Address
from probe.candidates.connection import Channel, SshOptions, connect
from probe.candidates.session import Answer, Orders, Watcher, ask
from probe.manifest import Manifest, PhaseRecord
from probe.node.measuring import MeasuredPhase
from probe.running import RunResult, check_coverage, predict_from
from reducer.unpack import open_probe

ATTEMPTS = 3
"""How often a node is connected to when the connection is lost."""

_PAUSE_SECONDS = 2.0
RESULT_VERSION = 1


@dataclass(frozen=True)
class CandidateResult:
    """What came of one candidate: a result, or the error that stands in its place, never both.

    A candidate is one node, or several that were declared identical. Seconds: `transfer` of the probe to it, `probing`
    from the agent's start to its end; of several nodes the longest. `sent`: bytes, of all. `quiet`: what each node says
    of the load while it measured.
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
    candidates: Sequence[Sequence[Address]],
    *,
    ssh: SshOptions,
    orders: Orders,
    jobs: int = 8,
    min_coverage: float | None = None,
    watcher: Callable[[str], Watcher],
) -> list[CandidateResult]:
    """Run the probe at `path` on every candidate, at most `jobs` nodes at a time; results in the order given.

    Several addresses in one candidate are nodes declared identical: each measures a part of the phases (thesis, section
    6.2). A node that fails is an entry with its reason. Raises only what is wrong with the probe itself:
    ProbeFileDamaged, StorageError, NoPrediction.
    """
    probe = Path(path)
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
        check_coverage(manifest, min_coverage)
        archive.verify()
    with ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="candidate") as pool:
        running = [
            pool.submit(_Candidate(probe, manifest, nodes, ssh, orders, watcher).run, min_coverage)
            for nodes in candidates
        ]
        try:
            return [future.result() for future in running]
        except BaseException:
            for future in running:
                future.cancel()
            raise


class _Candidate:
    def __init__(
        self, probe: Path, manifest: Manifest, nodes: Sequence[Address], ssh: SshOptions, orders: Orders,
        watcher: Callable[[str], Watcher],
    ) -> None:  # fmt: skip
        self._probe, self._manifest, self._nodes = probe, manifest, nodes
        self._ssh, self._orders, self._watcher = ssh, orders, watcher
        self._answers = [Answer() for _ in nodes]
        self._notes: list[str] = []
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
            tuple(a.quiet for a in told if a.quiet),
            tuple(dict.fromkeys(self._notes)),
        )

    def _result(self, min_coverage: float | None) -> RunResult:
        failures = self._measure()
        measured: dict[int, MeasuredPhase] = {}
        for answer in self._answers:
            measured.update(answer.phases)
        if failures and not any(phase.times for phase in measured.values()):
            raise failures[0]
        self._notes += [str(failure) for failure in failures]
        try:
            prediction = predict_from(self._manifest, list(measured.values()), min_coverage=min_coverage)
        except NoPrediction as error:
            reasons = [*(str(f) for f in failures), *(m.failure for m in measured.values() if m.failure)]
            if not reasons:
                raise
            kind = PhaseFailed if not failures else type(failures[0])
            raise kind(f"{reasons[0]} ({error})") from error
        node = next(answer.node for answer in self._answers if answer.phases)
        ordered = tuple(measured[p.id] for p in self._manifest.phases if p.id in measured)
        return RunResult(str(self._probe), self._manifest, node, ordered, prediction)

    def _measure(self) -> list[ProbeError]:
        """Have every phase measured by one of the nodes; why that did not work on some."""
        shares = split_phases([p for p in self._manifest.phases if p.can_run], len(self._nodes))
        failures: list[ProbeError] = []
        alive: list[int] = []
        with ThreadPoolExecutor(max_workers=len(self._nodes), thread_name_prefix="node") as pool:
            running = [pool.submit(self._on_node, n, share) for n, share in enumerate(shares)]
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
                    self._on_node(number, left)
                except ProbeError as error:
                    failures.append(error)
        return failures if self._left() or not alive else []

    def _left(self) -> set[int]:
        done = {phase for answer in self._answers for phase in answer.phases}
        return {p.id for p in self._manifest.phases if p.can_run} - done

    def _on_node(self, number: int, phases: Collection[int]) -> None:
        """Have these phases measured by one node, connecting again where the connection is lost."""
        address, answer = self._nodes[number], self._answers[number]
        watcher = self._watcher(address.text)
        wanted = set(phases)
        if not wanted:
            return
        for attempt in range(1, ATTEMPTS + 1):
            reached = False
            try:
                with connect(address, self._ssh) as connection, open_probe(self._probe) as archive:
                    reached = True
                    self._notes += connection.notes

                    @contextmanager
                    def start(command: str, via: Any = connection) -> Iterator[Channel]:
                        with via.start(command) as channel:
                            yield channel

                    ask(
                        start, self._probe, archive, self._manifest, wanted - set(answer.phases), self._orders, answer,
                        watcher,
                    )  # fmt: skip
                watcher.say("done")
                return
            except NodeUnreachable as error:
                # What never answered will not do so now: a wrong name, a key that is not accepted.
                if attempt == ATTEMPTS or not (reached or answer.node):
                    raise _named(error, address) from error
                watcher.say(f"{error}; connecting again")
                time.sleep(_PAUSE_SECONDS * attempt)
            except ProbeError as error:
                raise _named(error, address) from error


def _named(error: ProbeError, address: Address) -> ProbeError:
    """The same error with the node's name in front."""
    text = str(error)
    return error if text.startswith(address.text) else type(error)(f"{address.text}: {text}")


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
