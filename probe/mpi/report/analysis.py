# SPDX-License-Identifier: Apache-2.0
"""Simulate a recording and analyse it: waiting, loads of links, critical path, what other networks would buy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checkpoint.errors import ProgramUnsupported
from probe.formats.arrays import FloatArray
from probe.mpi.platforms import settings_of
from probe.mpi.recording import Recording
from probe.mpi.report.matching import matched
from probe.mpi.report.paths import Path, critical_path, waited, without_network
from probe.mpi.report.what_if import Change, changed
from probe.mpi.simulate import LinkLoad, Prepared, Watched, Where, link_loads, prepared, watch
from probe.mpi.trace import RankCalls, read_calls
from probe.progress import Display, Silent

EAGER = 65536
"""Bytes from which on SimGrid's sends wait for their receivers, unless a platform says otherwise."""

_EAGER = "--cfg=smpi/send-is-detached-thresh:"


@dataclass(frozen=True)
class Analysis:
    """A simulated program. waited: of each rank, until when each call waited for others to enter theirs.

    without_network: seconds, where messages take no time: the critical path of computing. changes: re-simulated.
    """

    recording: Recording
    where: Where
    scale: float
    ranks: tuple[RankCalls, ...]
    watched: Watched
    waited: tuple[FloatArray, ...]
    path: Path
    without_network: float
    changes: tuple[Change, ...]
    links: tuple[LinkLoad, ...]

    @property
    def seconds(self) -> float:
        """Of the whole program, simulated."""
        return self.watched.simulated.seconds

    def to_json(self) -> dict[str, Any]:
        """The part of `probe mpi report --json` that is not about files (docs/json.md)."""
        return {
            "network": self.where.name,
            "seconds": self.seconds,
            "computing": self.watched.simulated.share,
            "without_network": self.without_network,
            "path": {"computing": self.path.computing, "calls": self.path.seconds - self.path.computing},
            "changes": [
                {
                    "name": one.name, "latency": one.latency, "bandwidth": one.bandwidth, "cores": one.cores,
                    "seconds": one.seconds,
                }
                for one in self.changes
            ],
            "links": [
                {
                    "name": one.name, "bandwidth": one.bandwidth, "carried": one.carried,
                    "load": one.carried / one.bandwidth / self.seconds,
                }
                for one in self.links
            ],
        }  # fmt: skip


def analyse(
    recording: Recording, where: Where, *, scale: float = 1.0, limit: float = 3600.0, display: Display | None = None
) -> Analysis:
    """Simulate the recording on the network, as it is and changed. scale: times that computing takes.

    Raises ProgramUnsupported for ranks that make no calls, and what `simulate` raises.
    """
    with prepared(recording) as plays:
        return _analysed(recording, where, scale, limit, display or Silent(), plays)


def _analysed(
    recording: Recording, where: Where, scale: float, limit: float, shown: Display, plays: Prepared
) -> Analysis:
    with shown.stage("simulate") as report:
        watched = watch(recording, where, scale=scale, limit=limit, plays=plays)
        report(0.5)
        links = link_loads(recording, where, scale=scale, limit=limit, plays=plays)
        report(1.0)
    if not watched.simulated.seconds:
        raise ProgramUnsupported(f"{recording.folder}: takes no time on {where.name}: there is nothing to draw")
    with shown.stage("match") as report:
        ranks = tuple(read_calls(recording.folder, run.rank) for run in recording.ranks)
        found = matched(ranks, _eager(where))
        free = without_network([one.calls["computing"] * 1e-9 * scale for one in ranks], found)
        path = critical_path(watched.calls, found)
        report(1.0)
    with shown.stage("change") as report:
        changes = changed(recording, where, scale=scale, limit=limit, plays=plays, report=report)
    longest = max(float(one[-1, 1]) if len(one) else 0.0 for one in free)
    return Analysis(
        recording, where, scale, ranks, watched, waited(watched.calls, found), path, longest, changes, links
    )  # fmt: skip


def _eager(where: Where) -> int:
    if where.platform is not None:
        # The last one counts.
        for one in reversed(settings_of(where.platform)):
            if one.startswith(_EAGER):
                return int(float(one.removeprefix(_EAGER)))
    return EAGER
