# SPDX-License-Identifier: Apache-2.0
"""Order nodes by run time, by energy, or by when a run that is submitted now would end; intervals are carried."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from checkpoint.errors import NoPrediction, NotInStore
from probe.scaling.energy import of_power
from probe.store.opening import Store
from probe.store.records import Candidate
from probe.store.runs import NodePower, stored_power, stored_runs

TIME, ENERGY, END = "time", "energy", "end"
MEASURES: Final = (TIME, ENERGY, END)


@dataclass(frozen=True)
class Measured:
    """What nodes are ordered by, with the ends of its 95 % interval: seconds, or joules of a core for each thread."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranked:
    """A node, its joules where a type of its is known, and its end where a wait is. energy_source: of the watts."""

    candidate: Candidate
    joules: Measured | None
    energy_source: str
    wait: float | None

    @property
    def seconds(self) -> Measured:
        return Measured(self.candidate.seconds, self.candidate.low, self.candidate.high)

    @property
    def end(self) -> Measured | None:
        """Wait and run, from now."""
        if self.wait is None:
            return None
        return Measured(*(self.wait + value for value in (self.seconds.value, self.seconds.low, self.seconds.high)))

    def measure(self, by: str) -> Measured | None:
        """One of MEASURES; None where it is not known of this node."""
        return {TIME: self.seconds, ENERGY: self.joules, END: self.end}[by]


def rank_candidates(
    store: Store,
    found: Sequence[Candidate],
    by: str = TIME,
    waits: Mapping[str, float] | None = None,
    threads: int = 1,
) -> list[Ranked]:
    """The nodes, the least first, those that nothing is known of behind, those that cannot run the probe last.

    threads: that share its work. waits: seconds by type of nodes, in place of the median of stored runs'. Raises
    NotInStore for a type that no node has, NoPrediction where the measure is known of no node.
    """
    power = _by_type(stored_power(store)) if by == ENERGY else {}
    known = _waits(store) | dict(waits or {}) if by == END else {}
    ranked = [_ranked(one, power, known, threads) for one in found]
    _refuse_unknown(waits or {}, found)
    if found and all(one.measure(by) is None for one in ranked):
        what, how = ("power", "`probe energy set`") if by == ENERGY else ("wait", "--wait TYPE=DURATION")
        raise NoPrediction(f"no {what} is known of any node's name, cluster or feature; {how} enters it")
    return sorted(ranked, key=lambda one: _key(one, by))


def _refuse_unknown(waits: Mapping[str, float], found: Sequence[Candidate]) -> None:
    there = sorted({kind for one in found for kind in _types(one) if kind})
    if unknown := sorted(set(waits) - set(there)):
        raise NotInStore(
            f"--wait {unknown[0]}: no node of this probe has that name, cluster or feature; there are "
            f"{', '.join(there) or 'no nodes'}"
        )


def _key(one: Ranked, by: str) -> tuple[bool, bool, float, str]:
    measured = one.measure(by)
    return bool(one.candidate.unfit), measured is None, measured.value if measured else 0.0, one.candidate.node


def _ranked(one: Candidate, power: Mapping[str, NodePower], waits: Mapping[str, float], threads: int) -> Ranked:
    types = _types(one)
    drawn = next((power[kind] for kind in types if kind in power), None)
    wait = next((waits[kind] for kind in types if kind in waits), None)
    if drawn is None:
        return Ranked(one, None, "", wait)
    joules = Measured(*(of_power(drawn, threads, seconds).share for seconds in (one.seconds, one.low, one.high)))
    return Ranked(one, joules, drawn.source, wait)


def _types(one: Candidate) -> list[str]:
    """What a node's type may be called, the most special first."""
    return [one.node, *one.features, one.cluster]


def _by_type(found: Sequence[NodePower]) -> dict[str, NodePower]:
    """The most trusted source of each."""
    return {one.node_type: one for one in reversed(found)}


def _waits(store: Store) -> dict[str, float]:
    """Median wait of stored runs by type of nodes."""
    by_type: dict[str, list[float]] = {}
    for run in stored_runs(store):
        if run.wait is not None:
            by_type.setdefault(run.node_type, []).append(run.wait)
    return {kind: statistics.median(values) for kind, values in by_type.items()}
