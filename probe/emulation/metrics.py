# SPDX-License-Identifier: Apache-2.0
"""Figures of resource profiles: totals, what is derived from them, and their spread over repeated runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from probe.emulation.usage import AMOUNT, Usage

DERIVED = "derived"
USAGE_VERSION = 1
"""Of the JSON of `probe usage` and `probe profile`."""


@dataclass(frozen=True)
class Metric:
    """One figure of a whole run. `total` is None where it is not known: `missing` says why. Shares have no unit."""

    name: str
    kind: str
    unit: str
    total: float | None
    source: str
    missing: str


def metrics(usage: Usage) -> list[Metric]:
    """The run time, a figure for each column (amounts summed up, the largest of levels), then the derived ones."""
    wall = Metric("seconds", AMOUNT, "s", usage.seconds, "the supervisor's clock", "")
    of_columns = [
        Metric(name, column.kind, column.unit, usage.total(name), column.source, column.missing)
        for name, column in usage.header.columns.items()
    ]
    return [wall, *of_columns, *(_derived(usage, *one) for one in _DERIVED)]


def cpu_seconds(usage: Usage) -> float | None:
    """In user code and in the kernel, of all processes."""
    parts = usage.total("cpu_user"), usage.total("cpu_kernel")
    return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]


def _utilisation(usage: Usage) -> float | None:
    """Synapse's (section 4.3) where cycles and the highest frequency are known, else its counterpart in CPU time."""
    cycles, node = usage.total("cycles"), usage.header.node
    if cycles is not None and node.frequency:
        return cycles / (node.frequency * node.cores * usage.seconds)
    used = cpu_seconds(usage)
    return None if used is None else used / (node.cores * usage.seconds)


def _efficiency(usage: Usage) -> float | None:
    """Synapse, section 4.3: cycles used / (used + stalled). A cycle may be stalled at both ends, and counts twice."""
    used, front, back = (usage.total(name) for name in ("cycles", "stalled_frontend", "stalled_backend"))
    if used is None or front is None or back is None or not used + front + back:
        return None
    return used / (used + front + back)


def _growth(usage: Usage, sign: int) -> float | None:
    steps = sign * np.diff(usage.column("resident"), prepend=0.0)
    return None if np.isnan(steps).any() else float(steps[steps > 0].sum())


def _per(usage: Usage, above: str, below: str) -> float | None:
    first, second = usage.total(above), usage.total(below)
    return first / second if first is not None and second else None


def waiting(usage: Usage) -> float | None:
    """Share of the time in which no processor was used or wanted: sample by sample, what CPU time leaves of it."""
    wanted = usage.column("cpu_user") + usage.column("cpu_kernel") + np.nan_to_num(usage.column("run_queue"))
    length = np.diff(usage.end, prepend=0.0)
    return None if np.isnan(wanted).any() else float(np.maximum(0.0, length - wanted).sum() / usage.seconds)


_DERIVED: tuple[tuple[str, str, str, Callable[[Usage], float | None]], ...] = (
    ("cpu_seconds", "s", "cpu_user and cpu_kernel", cpu_seconds),
    ("utilisation", "", "of all processors' time, or of their cycles", _utilisation),
    ("efficiency", "", "cycles / (cycles + stalled_frontend + stalled_backend)", _efficiency),
    ("waiting", "", "length of samples less CPU time and run_queue", waiting),
    ("flops_per_second", "operations/s", "flops by run time", lambda u: _per_second(u, "flops")),
    ("allocated", "B", "growth of resident between samples", lambda u: _growth(u, 1)),
    ("freed", "B", "shrinking of resident between samples", lambda u: _growth(u, -1)),
    ("read_block", "B", "read by read_calls", lambda u: _per(u, "read", "read_calls")),
    ("write_block", "B", "written by write_calls", lambda u: _per(u, "written", "write_calls")),
)
"""Name, unit, what it is derived from, how."""


def _per_second(usage: Usage, name: str) -> float | None:
    total = usage.total(name)
    return None if total is None else total / usage.seconds


def _derived(usage: Usage, name: str, unit: str, source: str, made: Callable[[Usage], float | None]) -> Metric:
    total = made(usage)
    missing = "" if total is not None else f"not known: it needs {source}"
    return Metric(name, DERIVED, unit, total, source if total is not None else "", missing)


@dataclass(frozen=True)
class Spread:
    """One figure over repeated runs: mean, sample standard deviation (None of one run), range; `runs` that know it."""

    name: str
    unit: str
    runs: int
    mean: float
    deviation: float | None
    least: float
    most: float


def spreads(usages: Sequence[Usage]) -> list[Spread]:
    """Of profiles with one key: a row for each figure that one of them knows at least."""
    return spreads_of([{m.name: (m.unit, m.total) for m in metrics(usage)} for usage in usages])


def spreads_of(runs: Sequence[Mapping[str, tuple[str, float | None]]]) -> list[Spread]:
    """Of repeated runs, each figure of which has its unit and its total: a row for each that one of them knows."""
    found = []
    units = {name: unit for run in runs for name, (unit, _) in run.items()}
    for name, unit in units.items():
        known = [total for run in runs if (total := run.get(name, ("", None))[1]) is not None]
        if known:
            deviation = statistics.stdev(known) if len(known) > 1 else None
            mean = statistics.fmean(known)
            found.append(Spread(name, unit, len(known), mean, deviation, min(known), max(known)))
    return found


Key = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


def key_of(usage: Usage) -> Key:
    """Runs of one key are repetitions of each other: command and tags."""
    return usage.header.command, tuple(sorted(usage.header.tags.items()))


def usage_json(files: Sequence[tuple[str, Usage]]) -> dict[str, Any]:
    """What `probe usage --json` prints of profiles, each with the name of its file (docs/json.md)."""
    by_key: dict[Key, list[Usage]] = {}
    for _, usage in files:
        by_key.setdefault(key_of(usage), []).append(usage)
    return {
        "format_version": USAGE_VERSION,
        "profiles": [_described(name, usage) for name, usage in files],
        "keys": [
            {"command": list(command), "tags": _tags(dict(tags)), "runs": len(runs), "metrics": _asdicts(spreads(runs))}
            for (command, tags), runs in by_key.items()
        ],
    }


def _described(name: str, usage: Usage) -> dict[str, Any]:
    header = usage.header
    return {
        "file": name,
        "command": list(header.command),
        "tags": _tags(header.tags),
        "folder": header.folder,
        "started": header.started,
        "exit_status": header.exit_status,
        "node": asdict(header.node),
        "samples": usage.samples,
        "seconds": usage.seconds,
        "metrics": _asdicts(metrics(usage)),
        "endpoints": _asdicts(header.endpoints),
        "kernels": [{"name": name, "rate": rate} for name, rate in header.kernels.items()],
        "notes": list(header.notes),
    }


def _tags(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in sorted(tags.items())]


def _asdicts(records: Sequence[Any]) -> list[dict[str, Any]]:
    return [asdict(record) for record in records]
