# SPDX-License-Identifier: Apache-2.0
"""Notice whether something else used the machine while we measured."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

QUIET_BUSY = 0.08
"""Processors' worth of other work that still counts as quiet."""

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """What happened during a stretch: its seconds, the processor seconds of others (about: processes killed with
    their namespace are nobody's children), and those the hypervisor kept."""

    seconds: float = 0.0
    others: float = 0.0
    stolen: float = 0.0

    def to_json(self) -> dict[str, float]:
        return {k: round(v, 3) for k, v in asdict(self).items()}


def _processor_seconds() -> tuple[float, float]:
    """(busy, stolen) of all processors since boot."""
    values = [int(v) * _TICK for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = values[:8]
    return user + nice + system + irq + softirq, steal


def _ours() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


@contextmanager
def watched() -> Iterator[Load]:
    """Fills in the load of what runs inside. All children of it must have been waited for at its end."""
    load = Load()
    begun, (busy, stolen), ours = time.monotonic(), _processor_seconds(), _ours()
    try:
        yield load
    finally:
        busy_now, stolen_now = _processor_seconds()
        load.seconds = time.monotonic() - begun
        load.others = max(0.0, busy_now - busy - (_ours() - ours))
        load.stolen = stolen_now - stolen


def wait_until_quiet(patience: float) -> bool:
    """Wait until nobody else uses the machine, at most `patience` seconds; whether it became quiet."""
    deadline = time.monotonic() + patience
    while True:
        with watched() as load:
            time.sleep(1.0)
        if load.others / load.seconds <= QUIET_BUSY:
            return True
        if time.monotonic() > deadline:
            return False
