# SPDX-License-Identifier: Apache-2.0
"""The record of emulations as tables, and each bar met or missed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.emulation.kernels import AUTO

OVERHEAD, SPREAD, EQUAL, LONG, START = 0.01, 0.02, 0.05, 5.0, 0.1
"""Of E.1: overhead and spread; of E.2: differences of runs above LONG seconds; start-up in seconds."""


def tables(record: Mapping[str, Any]) -> str:
    """The experiments that there are, as Markdown."""
    parts = [
        f"{made(record[name]['rows'])}\n\nLoad average before: {record[name]['load']:.2f}."
        f"{' Short form.' * record[name]['quick']}"
        for name, made in EXPERIMENTS.items()
        if name in record
    ]
    return "\n\n".join(parts) or "nothing is measured yet"


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


def _kernels(rows: Sequence[Mapping[str, Any]]) -> str:
    """Differences from the first row, the program itself; instructions by CPU seconds as it used them."""
    own = rows[0]

    def against(row: Mapping[str, Any], name: str) -> str:
        known = row.get(name) is not None and own.get(name)
        return _share(row[name] / own[name] - 1) if known and row is not own else "-"

    table = _table(
        ("E.3: kernel", "took", "CPU", "instructions", "took", "CPU", "instructions"),
        (
            (r["kernel"], r["failure"][:60], *"-----")
            if "failure" in r
            else (
                r["kernel"], f"{r['seconds']:.2f} s", f"{r['cpu']:.2f} s",
                f"{r['instructions'] / 1e9:.2f}e9" if r["instructions"] else "not known",
                *(against(r, name) for name in ("seconds", "cpu", "instructions")),
            )
            for r in rows
        ),
    )  # fmt: skip
    return f"{table}\n\nCycles: not measured without hardware counters. Instructions: of user code, by Valgrind."


def _parallel(rows: Sequence[Mapping[str, Any]]) -> str:
    first = rows[0]
    return _table(
        ("E.4: threads", "ranks", "emulated", "faster", "GROMACS", "faster"),
        (
            (
                str(r["threads"]), str(r["ranks"]), f"{r['seconds']:.2f} s", f"{first['seconds'] / r['seconds']:.2f}",
                *((f"{r['program']:.2f} s", f"{first['program'] / r['program']:.2f}") if r["program"] else "--"),
            )
            for r in rows
        ),
    )  # fmt: skip


def _blocks(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("E.5: file system", "block", "read", "written"),
        (
            (r["file_system"], f"{r['block'] >> 10} KiB", f"{1e3 * r['read']:.0f} ms", f"{1e3 * r['written']:.0f} ms")
            for r in rows
        ),
    )


def _start(rows: Sequence[Mapping[str, Any]]) -> str:
    (found,) = rows
    met = _met(found["worst"] < START)
    return (
        f"Start-up of {found['rounds']} emulations: {1e3 * found['median']:.1f} ms in the median, "
        f"{1e3 * found['worst']:.1f} ms at worst; below {START:g} s: {met}."
    )


def _there(rows: Sequence[Mapping[str, Any]]) -> str:
    """On the emulated node: predictions of run time by each kernel over the program's own time there."""
    names = list(dict.fromkeys(name for r in rows for name in r.get("errors", ())))
    table = _table(
        ("program", "took there", *names, "emulated for real"),
        (
            (r["name"], r["failure"][:60], *["-"] * (len(names) + 1))
            if "failure" in r
            else (
                r["name"], f"{r['there']:.2f} s", *(_share(r["errors"].get(n)) for n in names), _share(r.get("real")),
            )
            for r in rows
        ),
    )  # fmt: skip
    good = [r for r in rows if "failure" not in r]
    if not good:
        return table
    middle = {n: statistics.median(abs(r["errors"][n]) for r in good if n in r["errors"]) for n in names}
    fixed = min((n for n in names if n != AUTO), key=middle.__getitem__)
    said = ", ".join(f"{n} {100 * value:.1f} %" for n, value in middle.items())
    met = _met(middle[AUTO] < middle[fixed])
    return f"{table}\n\nMedian of the absolute errors: {said}. {AUTO} better than the best fixed ({fixed}): {met}."


EXPERIMENTS = {
    "E.1": _overhead, "E.2": _emulated, "E.3": _kernels, "E.4": _parallel, "E.5": _blocks, "start": _start,
    "there": _there,
}  # fmt: skip
"""What `scripts/bench emulation --only` names, and how each is shown."""
