# SPDX-License-Identifier: Apache-2.0
"""Simulate a program again with other networks and cores: what each would buy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from probe.mpi.recording import Recording
from probe.mpi.simulate import Prepared, Where, simulate

_FREE = 1e6
"""Times the bandwidth at which transfers take no time to speak of."""


@dataclass(frozen=True)
class Change:
    """Another network or other cores: times the latency and bandwidth of links, times the speed of cores.

    seconds: of the whole program, simulated.
    """

    name: str
    latency: float = 1.0
    bandwidth: float = 1.0
    cores: float = 1.0
    seconds: float = 0.0


CHANGES = (
    Change("latency halved", latency=0.5),
    Change("bandwidth doubled", bandwidth=2.0),
    Change("latency halved, bandwidth doubled", latency=0.5, bandwidth=2.0),
    Change("cores 10 % faster", cores=1.1),
    Change("cores twice as fast", cores=2.0),
    Change("no latency, transfers at once", latency=0.0, bandwidth=_FREE),
)


def changed(
    recording: Recording,
    where: Where,
    *,
    scale: float = 1.0,
    limit: float = 3600.0,
    plays: Prepared | None = None,
    report: Callable[[float], None] = lambda _: None,
) -> tuple[Change, ...]:
    """Simulate each of CHANGES. Raises what `simulate` raises."""
    found = []
    for number, one in enumerate(CHANGES):
        there = replace(where, times_latency=one.latency, times_bandwidth=one.bandwidth)
        done = simulate(recording, there, scale=scale / one.cores, limit=limit, plays=plays)
        found.append(replace(one, seconds=done.seconds))
        report((number + 1) / len(CHANGES))
    return tuple(found)
