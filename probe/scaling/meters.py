# SPDX-License-Identifier: Apache-2.0
"""Meters of energy on this machine: the kernel's powercap counters, and the baseboard controller by ipmitool."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from checkpoint.errors import ProbeError

POWERCAP = Path("/sys/class/powercap")
IPMITOOL = ("ipmitool", "dcmi", "power", "reading")
_POLL_SECONDS = 1.0
_TOOL_SECONDS = 10.0
_MOST_MISSED = 10
"""Answers of the controller in a row that may be missing: the last one counts on."""

_READING = re.compile(r"Instantaneous power reading:\s*(\d+)\s*Watts")
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
_MEMORY = "dram"
_TWIN = "-mmio"
"""Of the name of a driver that reads the same counters by another way."""


class Unmeasured(ProbeError):
    """A source of energy cannot be read here; the text says why."""


@dataclass(frozen=True)
class PassedOver:
    """A more trusted source that was not taken, and why."""

    source: str
    reason: str


_ACCOUNTING = PassedOver("accounting", "knows finished jobs alone (`probe slurm runs`)")


@dataclass(frozen=True)
class _Zone:
    """A counter of microjoules that begins anew after `largest`."""

    path: Path
    largest: int

    def read(self) -> int:
        return int((self.path / "energy_uj").read_text())


def zones(folder: Path = POWERCAP) -> list[_Zone]:
    """Counters of whole processors and of memory. Raises Unmeasured without any that this user may read.

    What is inside another one's count is left out, as are twins: counters that two drivers show.
    """
    found: dict[str, _Zone] = {}
    refused = ""
    # Twins come last.
    for path in sorted(folder.glob("*:*"), key=lambda one: (_TWIN in one.name, one.name)):
        try:
            name = _identity(path)
            if not name or name in found:
                continue
            zone = _Zone(path, int((path / "max_energy_range_uj").read_text()))
            zone.read()
        except (OSError, ValueError) as error:
            refused = refused or f"{path}: {getattr(error, 'strerror', None) or error}"
            continue
        found[name] = zone
    if found:
        return list(found.values())
    if refused:
        raise Unmeasured(f"{refused}; the kernel lets root alone read its counters")
    raise Unmeasured(f"{folder} has no counter of a processor; a virtual machine has none, nor have many processors")


def _identity(path: Path) -> str:
    """Name of what the zone counts, the same for twins; empty for a part of another zone. Raises OSError."""
    name = (path / "name").read_text().strip()
    if name == _MEMORY:
        return f"{(path.parent / path.name.rpartition(':')[0] / 'name').read_text().strip()}/{_MEMORY}"
    return name if _PACKAGE.fullmatch(name) else ""


def consumed(before: int, after: int, largest: int) -> int:
    """Microjoules between two readings of a counter that may have begun anew once. Raises Unmeasured for nonsense."""
    if not (0 <= before <= largest and 0 <= after <= largest):
        raise Unmeasured(f"the counter says {before} and {after}, and its largest value is {largest}")
    return after - before if after >= before else after + largest + 1 - before


def watts_by_ipmi(command: Sequence[str] = IPMITOOL) -> float:
    """What the whole node draws now. Raises Unmeasured without ipmitool, or without such a sensor."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unmeasured(f"{command[0]} said nothing for {_TOOL_SECONDS:g} s") from error
    except OSError as error:
        raise Unmeasured(f"{command[0]}: {error.strerror}") from error
    found = _READING.search(done.stdout)
    if found and not done.returncode:
        return float(found[1])
    said = " ".join(f"{done.stderr} {done.stdout}".split())[:200]
    raise Unmeasured(f"`{' '.join(command)}` names no power: {said or 'it printed nothing'}")


class Meter:
    """Measures the energy of a stretch of time by what there is: powercap, else IPMI. Use it in a `with` block.

    Afterwards `joules` and `source` say it, and `passed_over` why not by the sources that are trusted more. They are
    None and empty where nothing can be measured.
    """

    def __init__(
        self, powercap: Path = POWERCAP, ipmi: Sequence[str] = IPMITOOL, poll_seconds: float = _POLL_SECONDS
    ) -> None:
        self.joules: float | None = None
        self.source = ""
        self.passed_over: tuple[PassedOver, ...] = (_ACCOUNTING,)
        self._powercap, self._ipmi, self._poll = powercap, ipmi, poll_seconds
        self._ended = threading.Event()
        self._total = 0.0

    def __enter__(self) -> Meter:
        for source, begin in (("powercap", self._begin_counting), ("ipmi", self._begin_integrating)):
            try:
                follow = begin()
            except Unmeasured as error:
                self._pass_over(source, str(error))
                continue
            self.source = source
            self._thread = threading.Thread(target=self._until_ended, args=(follow,), daemon=True)
            self._thread.start()
            break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self.source:
            self._thread.join()
        if self.source:
            self.joules = self._total

    def _pass_over(self, source: str, reason: str) -> None:
        self.passed_over = (*self.passed_over, PassedOver(source, reason))

    def _until_ended(self, follow: Callable[[], None]) -> None:
        """Call `follow` now and then, the last time at the end. Half a measurement is none."""
        ended = False
        while not ended:
            ended = self._ended.wait(self._poll)
            try:
                follow()
            except (Unmeasured, OSError, ValueError) as error:
                self._pass_over(self.source, f"while it was read: {error}")
                self.source = ""
                return

    def _begin_counting(self) -> Callable[[], None]:
        """A function that adds up; called often enough, no counter begins anew twice in between."""
        counters = zones(self._powercap)
        last = [zone.read() for zone in counters]

        def follow() -> None:
            nonlocal last
            now = [zone.read() for zone in counters]
            for zone, before, after in zip(counters, last, now, strict=True):
                try:
                    self._total += consumed(before, after, zone.largest) / 1e6
                except Unmeasured as error:
                    raise Unmeasured(f"{zone.path}: {error}") from error
            last = now

        return follow

    def _begin_integrating(self) -> Callable[[], None]:
        watts, moment, missed = watts_by_ipmi(self._ipmi), time.monotonic(), 0

        def follow() -> None:
            nonlocal watts, moment, missed
            try:
                value, missed = watts_by_ipmi(self._ipmi), 0
            except Unmeasured:
                # A controller that is busy refuses now and then; one that is gone measures nothing.
                value, missed = watts, missed + 1
                if missed > _MOST_MISSED:
                    raise
            now = time.monotonic()
            self._total += (watts + value) / 2 * (now - moment)
            watts, moment = value, now

        return follow
