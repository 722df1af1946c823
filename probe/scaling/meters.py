# SPDX-License-Identifier: Apache-2.0
"""Meters of energy on this machine: the kernel's powercap counters, and the baseboard controller by ipmitool."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from checkpoint.errors import ProbeError

POWERCAP = Path("/sys/class/powercap")
IPMITOOL = ("ipmitool", "dcmi", "power", "reading")
_POLL_SECONDS = 1.0
_TOOL_SECONDS = 10.0
_READING = re.compile(r"Instantaneous power reading:\s*(\d+)\s*Watts")
_COUNTED = re.compile(r"(package-\d+|dram)\s*")


@dataclass(frozen=True)
class _Zone:
    """A counter of microjoules that begins anew after `largest`."""

    path: Path
    largest: int

    def read(self) -> int:
        return int((self.path / "energy_uj").read_text())


def zones(folder: Path = POWERCAP) -> list[_Zone]:
    """Counters of whole processors and of memory; what is inside another one's count is left out.

    Empty without any that this user may read (the kernel lets root alone).
    """
    found = []
    for path in sorted(folder.glob("*:*")):
        try:
            name = (path / "name").read_text()
            zone = _Zone(path, int((path / "max_energy_range_uj").read_text()))
            zone.read()
        except (OSError, ValueError):
            continue
        if _COUNTED.fullmatch(name):
            found.append(zone)
    return found


def consumed(before: int, after: int, largest: int) -> int:
    """Microjoules between two readings of a counter that may have begun anew once."""
    if not (0 <= before <= largest and 0 <= after <= largest):
        raise ProbeError(f"a powercap counter says {before} and {after}, and its largest value is {largest}")
    return after - before if after >= before else after + largest + 1 - before


def watts_by_ipmi(command: Sequence[str] = IPMITOOL) -> float | None:
    """What the whole node draws now; None without ipmitool, or without such a sensor."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _READING.search(done.stdout)
    return float(found[1]) if found and not done.returncode else None


class Meter:
    """Measures the energy of a stretch of time by what there is: powercap, else IPMI. Use it in a `with` block.

    Afterwards `joules` and `source` say it; both are None and empty where nothing can be measured.
    """

    def __init__(
        self, powercap: Path = POWERCAP, ipmi: Sequence[str] = IPMITOOL, poll_seconds: float = _POLL_SECONDS
    ) -> None:
        self.joules: float | None = None
        self.source = ""
        self._zones = zones(powercap)
        self._ipmi, self._poll = ipmi, poll_seconds
        self._ended = threading.Event()
        self._counted = 0
        self._area = 0.0

    def __enter__(self) -> Meter:
        if self._zones:
            self.source, target = "powercap", self._count
        elif watts_by_ipmi(self._ipmi) is not None:
            self.source, target = "ipmi", self._integrate
        else:
            return self
        self._begun = threading.Event()
        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if not self.source:
            return
        self._thread.join()
        self.joules = self._counted / 1e6 if self.source == "powercap" else self._area

    def _count(self) -> None:
        """Add up; often enough that no counter begins anew twice in between."""
        last = [zone.read() for zone in self._zones]
        self._begun.set()
        while True:
            ended = self._ended.wait(self._poll)
            now = [zone.read() for zone in self._zones]
            pairs = zip(last, now, self._zones, strict=True)
            self._counted += sum(consumed(before, after, zone.largest) for before, after, zone in pairs)
            last = now
            if ended:
                return

    def _integrate(self) -> None:
        watts, moment = watts_by_ipmi(self._ipmi) or 0.0, time.monotonic()
        self._begun.set()
        while True:
            ended = self._ended.wait(self._poll)
            value, now = watts_by_ipmi(self._ipmi), time.monotonic()
            value = watts if value is None else value
            self._area += (watts + value) / 2 * (now - moment)
            watts, moment = value, now
            if ended:
                return
