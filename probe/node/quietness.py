# SPDX-License-Identifier: Apache-2.0
"""Judge how quiet this node was while phases were timed, and which repeats something else disturbed."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint.restore.criu_restore import RegionTime
from probe.formats.manifest import Manifest
from probe.node.measuring import ARRIVING, OTHER_WORK

DISTURBED = 0.05
"""A repeat whose wall time exceeds its CPU time by this share more than usual: others had the processor."""

_STOLEN = 0.05
"""Share of a repeat that the hypervisor may give to other machines."""

_DELAY, _SHORT_DELAY = 0.02, 0.002
"""Share of warm-up and region, and seconds besides, that one of several threads may wait for a processor. A thread that
waits for another by spinning is not slowed down when that loses its processor: CPU time would not tell."""

_SWITCHES = 2
"""Times that threads may lose a processor in any region, besides once a second each, where nobody knows for how long.
The kernel's own threads take it five to sixteen times in 30 ms, for 0.1 ms each: so the delay is the better judge."""

_TICK = os.sysconf("SC_CLK_TCK")


class QuietJudge:
    """Lets a repeat count where the phase had its processor to itself (measuring.Judge); describes the node meanwhile.

    `arriving` tells whether the probe is still being received: such repeats show that a phase runs, but receiving takes
    processor and memory from them. `told` gets (phase, restorer, time, why it does not count or "") of each.
    """

    def __init__(
        self,
        manifest: Manifest,
        cpu: int | None,
        *,
        arriving: Callable[[], bool] = lambda: False,
        told: Callable[[int, str, RegionTime, str], None] = lambda *_: None,
    ) -> None:
        self._phases = {phase.id: phase for phase in manifest.phases}
        self._clock, self._threads = manifest.reference.clock, manifest.threads
        self._cpu, self._arriving, self._told = cpu, arriving, told
        self._began_arriving = False
        self._stolen_before = 0.0
        self._begun = time.monotonic()
        self._before, self._own_before = _processor_seconds(None), _own_seconds()
        self._load = os.getloadavg()[0]
        self._frequencies: list[float] = []
        self._repeats = self._disturbed = 0

    def begin(self) -> None:
        self._began_arriving = self._arriving()
        self._stolen_before = _processor_seconds(self._cpu)[1]

    def why_not(self, phase: int, restorer: str, time: RegionTime) -> str:
        why = self._found(phase, restorer, time)
        self._frequencies += _frequency(self._cpu)
        self._repeats += 1
        self._disturbed += why == OTHER_WORK
        self._told(phase, restorer, time, why)
        return why

    def _found(self, phase: int, restorer: str, time: RegionTime) -> str:
        if self._began_arriving:
            return ARRIVING
        # Ticks are too coarse for a short region: what was stolen around it is compared with all of it.
        stolen = _processor_seconds(self._cpu)[1] - self._stolen_before
        if stolen > _STOLEN * (time.restore + time.warm + time.wall) + 2 / _TICK:
            return OTHER_WORK
        if self._waited(time):
            return OTHER_WORK
        return OTHER_WORK if time.cpu <= 0 or time.wall / time.cpu > self._usual(phase, restorer) else ""

    def _waited(self, time: RegionTime) -> bool:
        """Whether one of several threads was without its processor for long, or too often."""
        if time.delay is not None:
            return time.delay > _DELAY * (time.warm + time.wall) + _SHORT_DELAY
        return time.switches is not None and time.switches > _SWITCHES + self._threads * time.wall

    def _usual(self, phase: int, restorer: str) -> float:
        times = self._phases[phase].restored(restorer)
        if self._clock == "cpu" or not times.cpu:
            return 1.0 + DISTURBED
        return statistics.median(w / c for w, c in zip(times.wall, times.cpu)) * (1.0 + DISTURBED)  # noqa: B905

    def describe(self) -> dict[str, Any]:
        """What else went on since this was made. Call it when all that was started has been waited for.

        `others`: share of all processors that other processes used; `stolen`: by other virtual machines; `load` before
        and after; `mhz`: lowest and highest clock seen on the measured processor (empty where it cannot be known).
        """
        busy, stolen = (after - before for after, before in zip(_processor_seconds(None), self._before))  # noqa: B905
        whole = max(time.monotonic() - self._begun, 1e-9) * (os.cpu_count() or 1)
        own = _own_seconds() - self._own_before
        seen = self._frequencies
        return {
            "load": [round(self._load, 2), round(os.getloadavg()[0], 2)],
            "others": round(min(1.0, max(0.0, (busy - own) / whole)), 4),
            "stolen": round(min(1.0, max(0.0, stolen / whole)), 4),
            "mhz": [round(min(seen)), round(max(seen))] if seen else [],
            "repeats": self._repeats,
            "disturbed": self._disturbed,
        }


def _processor_seconds(cpu: int | None) -> tuple[float, float]:
    """(busy, stolen) seconds since boot of one processor, or of all (None)."""
    name = "cpu" if cpu is None else f"cpu{cpu}"
    with open("/proc/stat") as file:
        for line in file:
            fields = line.split()
            if fields[0] == name:
                user, nice, system, _, _, irq, softirq, steal = (int(f) for f in fields[1:9])
                return (user + nice + system + irq + softirq) / _TICK, steal / _TICK
    return 0.0, 0.0


def _own_seconds() -> float:
    """Processor seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _frequency(cpu: int | None) -> list[float]:
    """MHz of a processor now, where the kernel tells."""
    with contextlib.suppress(OSError, ValueError):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu or 0}/cpufreq/scaling_cur_freq")
        return [int(path.read_text()) / 1000]
    return []
