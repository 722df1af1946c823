# SPDX-License-Identifier: Apache-2.0
"""The record of emulations as tables, and each bar met or missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OVERHEAD, SPREAD, EQUAL, LONG, START = 0.01, 0.02, 0.05, 5.0, 0.1
"""Of E.1: overhead and spread; of E.2: differences of runs above LONG seconds; start-up in seconds."""


def tables(record: Mapping[str, Any]) -> str:
    """All experiments, as Markdown."""
    parts = [
        f"Load average before: {record['load']:.2f}.", _overhead(record["overhead"]), _emulated(record["emulated"]),
        _threads(record["threads"]), _blocks(record["blocks"]), _start(record["start_up"]),
        "E.3 (cycles on two machines, by hardware counters): not measured.",
    ]  # fmt: skip
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _met(met: bool) -> str:
    return "met" if met else "SHORT"


def _overhead(rows: Sequence[Mapping[str, Any]]) -> str:
    table = _table(
        ("E.1: length", "rate", "pairs", "wall", "CPU", "noise of CPU", "spread of CPU"),
        (
            (f"{r['length']:g} s", f"{r['rate']}/s", str(r["pairs"]), _share(r["wall"]), _share(r["cpu"]),
             f"{100 * r['noise']:.1f} %", f"{100 * r['cpu_spread']:.1f} %")
            for r in rows
        ),
    )  # fmt: skip
    cheap = all(r["cpu"] < max(OVERHEAD, r["noise"]) for r in rows)
    steady = all(r["cpu_spread"] < SPREAD for r in rows)
    judged = f"Overhead below {OVERHEAD:.0%} or the noise: {_met(cheap)}. Spread below {SPREAD:.0%}: {_met(steady)}."
    return f"{table}\n\n{judged}"


def _emulated(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("cpu_seconds", "read", "written", "resident")
    table = _table(
        ("E.2: command", "equal", "took", "wall", "CPU", "read", "written", "resident"),
        (
            (
                r["name"],
                r["equal"],
                f"{r['seconds']:.2f} s",
                _share(r["wall"]),
                *(_share(r["totals"][n]) for n in names),
            )
            for r in rows
        ),
    )
    long = [r for r in rows if r["seconds"] > LONG]
    if not long:
        return f"{table}\n\nNo run was longer than {LONG:g} s: no bar applies."
    wall = all(abs(r["wall"]) <= EQUAL for r in long)
    totals = all(abs(v) <= EQUAL for r in long for v in r["totals"].values() if v is not None)
    return f"{table}\n\nWall within {EQUAL:.0%}: {_met(wall)}. Each resource within {EQUAL:.0%}: {_met(totals)}."


def _threads(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("E.4: threads", "took", "faster"),
        ((str(r["threads"]), f"{r['seconds']:.2f} s", f"{rows[0]['seconds'] / r['seconds']:.2f}") for r in rows),
    )


def _blocks(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("E.5: file system", "block", "read", "written"),
        (
            (r["file_system"], f"{r['block'] >> 10} KiB", f"{1e3 * r['read']:.0f} ms", f"{1e3 * r['written']:.0f} ms")
            for r in rows
        ),
    )


def _start(found: Mapping[str, Any]) -> str:
    met = _met(found["worst"] < START)
    return (
        f"Start-up of {found['rounds']} emulations: {1e3 * found['median']:.1f} ms in the median, "
        f"{1e3 * found['worst']:.1f} ms at worst; below {START:g} s: {met}."
    )
