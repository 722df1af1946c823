# SPDX-License-Identifier: Apache-2.0
"""Clusters of recorded ranks that make the same calls with the same computing: one of each stands for all."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkpoint.errors import ProgramUnsupported
from probe.mpi.library.calls import names
from probe.mpi.recording import Recording
from probe.mpi.trace import RankCalls

SPREAD = 0.05
"""Relative difference in computing time at which ranks with equal calls are told apart."""

_ALL_TO_ALL = [names().index(name) for name in ("Alltoallv", "Ialltoallv", "Alltoallw", "Ialltoallw")]
"""Calls whose amounts stand behind them alone."""


@dataclass(frozen=True)
class Cluster:
    """Ranks with equal calls. computing: seconds of the representative, in the recorded run. spread: relative.

    verified: the member that was replayed, too, if there is another. error: of its CPU time alone, as the
    representative's gives it, relative. probed: whether there is a probe of the representative, which computes enough.
    differing: messages that the representative sends with other data alone, as it was recorded.
    """

    representative: int
    ranks: tuple[int, ...]
    computing: float
    spread: float
    verified: int | None = None
    error: float | None = None
    probed: bool = True
    differing: int = 0


@dataclass(frozen=True)
class Summary:
    """What clustering needs of a rank's calls, which are not kept: those of thousands of ranks need not fit in memory.

    computing: seconds. calls: digest of what the rank calls, and how much each call carries; not with whom.
    """

    rank: int
    computing: float
    calls: bytes


def clusters_of(recording: Recording, ranks: Sequence[Summary]) -> list[Cluster]:
    """The clusters, by their first ranks. Raises ProgramUnsupported where none of a cluster's ranks has its answers."""
    alike: dict[bytes, list[Summary]] = defaultdict(list)
    for one in ranks:
        alike[one.calls].append(one)
    found = [_cluster(recording, part) for group in alike.values() for part in _parted(group)]
    return sorted(found, key=lambda one: one.ranks)


def summary_of(one: RankCalls) -> Summary:
    """The summary of a rank, its number of threads in the digest, too."""
    digest = hashlib.sha256(str(one.own_threads).encode())
    for name in ("function", "count", "element", "comm"):
        digest.update(one.calls[name].tobytes())
    for number in np.flatnonzero(np.isin(one.calls["function"], _ALL_TO_ALL)):
        # What it sends, then what it receives.
        sent, received = np.array_split(one.extras_of(int(number)).astype(np.int64), 2)
        digest.update(np.array([sent.sum(), received.sum()]).tobytes())
    return Summary(one.rank, one.computing, digest.digest())


def _parted(group: list[Summary]) -> list[list[Summary]]:
    """The group in parts, within each of which computing times differ by SPREAD at most."""
    parts: list[list[Summary]] = []
    for one in sorted(group, key=lambda rank: rank.computing):
        if parts and one.computing <= parts[-1][0].computing * (1 + SPREAD):
            parts[-1].append(one)
        else:
            parts.append([one])
    return parts


def _cluster(recording: Recording, part: list[Summary]) -> Cluster:
    numbers = tuple(sorted(one.rank for one in part))
    kept = [one for one in part if recording.ranks[one.rank].kept]
    if not kept:
        raise ProgramUnsupported(
            f"{recording.folder}: none of the ranks {', '.join(map(str, numbers[:8]))} was recorded with its answers; "
            f"record again with --rank {numbers[0]} too"
        )
    middle = kept[len(kept) // 2]
    lowest, highest = part[0].computing, part[-1].computing
    return Cluster(middle.rank, numbers, middle.computing, highest / lowest - 1 if lowest > 0 else 0.0)
