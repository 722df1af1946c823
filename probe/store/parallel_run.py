# SPDX-License-Identifier: Apache-2.0
"""Runs of a kernel on some number of cores, and their JSON. All durations are seconds, energy is joules."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import finite

RUNS_VERSION: Final = 1
ENERGY_SOURCES: Final = ("accounting", "powercap", "ipmi", "published", "hand")
"""Where joules come from, the most trusted first."""

MESSAGE_NOTE: Final = "mpi_message"
"""Note of a run: bytes of the message that carries a byte, on the average."""

_TIMES = ("runtime", "mpi", "io", "coupling", "wait", "energy")
_COUNTS = ("nodes", "cores", "ranks", "threads")
_MOST_COUNT = (1 << 31) - 1
_MOST_TEXT = 4096
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ParallelRun:
    """One run of one kernel. cores: physical ones that it had for itself, on all nodes together.

    config: SHA-256 of its input files, or empty. runtime: wall seconds; mpi, io, coupling: of those, in the slowest
    rank, None where they were not measured. wait: between submission and start. energy: joules of all nodes, from
    `energy_source`. shared: other jobs, or further threads of the same cores, ran beside it. source: names where the
    run is known from; the same one is stored once. ended_at: seconds since 1970.
    """

    app: str
    kernel: str
    node_type: str
    cores: int
    ranks: int
    runtime: float
    work: float
    source: str
    nodes: int = 1
    threads: int = 1
    config: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)
    ended_at: float = 0.0
    mpi: float | None = None
    io: float | None = None
    coupling: float | None = None
    wait: float | None = None
    energy: float | None = None
    energy_source: str = ""
    shared: bool = False
    benchmark: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def message(self) -> float | None:
        """Bytes of the message that carries a byte, on the average; None where that was not measured."""
        text = self.notes.get(MESSAGE_NOTE, "")
        return float(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None

    @property
    def computing(self) -> float | None:
        """Seconds in neither MPI, I/O nor coupling; None where MPI was not measured."""
        return None if self.mpi is None else self.runtime - self.mpi - (self.io or 0.0) - (self.coupling or 0.0)

    @property
    def oversubscribed(self) -> bool:
        """Whether threads had to share cores."""
        return self.ranks * self.threads > self.cores

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe store runs`."""
        parameters = [{"name": name, "value": value} for name, value in self.parameters.items()]
        notes = [{"name": name, "value": value} for name, value in self.notes.items()]
        return {**asdict(self), "parameters": parameters, "notes": notes, "computing": self.computing}


def runs_from_json(said: Any) -> list[ParallelRun]:
    """The runs of a JSON object such as `probe store runs --format json` prints. Raises ProbeError."""
    if not isinstance(said, Mapping) or said.get("format_version") != RUNS_VERSION or "runs" not in said:
        raise ProbeError(f"not runs, version {RUNS_VERSION}: an object with format_version and runs is expected")
    if not isinstance(said["runs"], list):
        raise ProbeError("runs is no list")
    return [checked_run(run, f"run {number}") for number, run in enumerate(said["runs"], start=1)]


def checked_run(said: Any, where: str) -> ParallelRun:
    """A run from foreign values by the names of the fields. Raises ProbeError with the field that is wrong."""
    try:
        given = dict(said)
        given.pop("computing", None)
        known = {one.name for one in fields(ParallelRun)}
        if unknown := sorted(set(map(str, given)) - known):
            raise ValueError(f"unknown key {unknown[0]!r}")
        values = {name: _checked(name, value) for name, value in given.items()}
        run = ParallelRun(**values)
        _whole(run)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(f"{where}: {error}; see docs/scaling.md for what a run has") from error
    return run


def _checked(name: str, value: Any) -> Any:
    if name in ("parameters", "notes"):
        return _pairs(name, value)
    if name in _COUNTS:
        if type(value) is not int or not 1 <= value <= _MOST_COUNT:
            raise ValueError(f"{name} = {str(value)[:40]} is no number above 0")
        return value
    if name in ("shared", "benchmark"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} = {str(value)[:40]} is neither true nor false")
        return value
    if name in (*_TIMES, "work", "ended_at"):
        return None if value is None and name in _TIMES[1:] else finite(value)
    if not isinstance(value, str) or "\0" in value or len(value.encode()) > _MOST_TEXT:
        raise ValueError(f"{name} = {str(value)[:40]!r} is no text")
    return value


def _pairs(name: str, value: Any) -> dict[str, Any]:
    """A mapping, or a list of objects with name and value, as JSON has it."""
    items = value.items() if isinstance(value, Mapping) else [(one["name"], one["value"]) for one in value]
    if name == "parameters":
        return {str(key): finite(number) for key, number in items}
    return {str(key): _checked("note", text) for key, text in items}


def _whole(run: ParallelRun) -> None:
    for name in ("app", "kernel"):
        if not _NAME.fullmatch(getattr(run, name)):
            raise ValueError(f"{name} = {getattr(run, name)!r} is no name")
    if not run.node_type or not run.source:
        raise ValueError("node_type and source must not be empty")
    if len(run.source) > 255 or len(run.node_type) > 255:
        raise ValueError("node_type and source have 255 characters at most")
    for name in ("runtime", "work"):
        if getattr(run, name) <= 0:
            raise ValueError(f"{name} = {getattr(run, name):g} must be above 0")
    for name in _TIMES[1:]:
        if (getattr(run, name) or 0.0) < 0:
            raise ValueError(f"{name} = {getattr(run, name):g} is negative")
    parts = sum(value or 0.0 for value in (run.mpi, run.io, run.coupling))
    if parts > run.runtime * (1 + 1e-6):
        raise ValueError(f"MPI, I/O and coupling take {parts:g} s of a run of {run.runtime:g} s")
    if (run.energy is not None) != (run.energy_source in ENERGY_SOURCES):
        raise ValueError(f"energy needs a source of {', '.join(ENERGY_SOURCES)}, and a source needs energy")
    if not math.isfinite(run.ended_at) or run.ended_at < 0:
        raise ValueError("ended_at is no time of day")
