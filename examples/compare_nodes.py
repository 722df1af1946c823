#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare several programs on several nodes, by the Python API: one table and one figure.

    examples/compare_nodes.py --here --on node1 --on user@node2 hmmsearch.probe solver.probe

Runs each probe here and on each node, writes nodes.csv and nodes.png, and prints the table. A node that cannot run a
probe has a reason in place of a number. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import probe

HERE = "here"


@dataclass(frozen=True)
class Row:
    """One program on one node. Seconds, with the 95 % interval; None and a `reason` where there is no prediction.

    `speed`: how many times as fast as the node on which the probe was made.
    """

    program: str
    node: str
    seconds: float | None
    low: float | None
    high: float | None
    speed: float | None
    reason: str = ""


def measured(path: Path, nodes: Sequence[str], *, here: bool, repeats: int, ssh: probe.SshOptions) -> Iterable[Row]:
    """Rows of one probe: here, if asked for, and on each of `nodes`."""
    if here:
        try:
            yield _row(path, HERE, probe.run(path, repeats=repeats))
        except probe.ProbeError as error:
            yield _row(path, HERE, error)
    if nodes:
        try:
            for candidate in probe.run_on(path, nodes, ssh=ssh, orders=probe.Orders(repeats=repeats)):
                yield _row(path, candidate.name, candidate.result or candidate.error)
        except probe.ProbeError as error:
            # Of the probe itself, before any node was asked.
            yield from (_row(path, node, error) for node in nodes)


def _row(path: Path, node: str, result: probe.RunResult | probe.ProbeError | None) -> Row:
    program = path.stem
    if not isinstance(result, probe.RunResult):
        return Row(program, node, None, None, None, None, str(result))
    p = result.prediction
    return Row(program, node, p.seconds, p.low, p.high, result.manifest.reference.seconds / p.seconds)


def write_table(rows: Sequence[Row], path: Path) -> None:
    """All rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(astuple(row) for row in rows)


def print_table(rows: Sequence[Row]) -> None:
    """The table for people: a line for each program, a column for each node."""
    nodes = list(dict.fromkeys(row.node for row in rows))
    lines = [["", *nodes]]
    for program in dict.fromkeys(row.program for row in rows):
        of = {row.node: row for row in rows if row.program == program}
        lines.append([program, *(_cell(of.get(node)) for node in nodes)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if row.reason:
            print(f"{row.program} on {row.node}: {row.reason}")


def _cell(row: Row | None) -> str:
    if row is None or row.seconds is None or row.low is None or row.high is None:
        return "none"
    return f"{row.seconds:.2f} s ({row.low:.2f} to {row.high:.2f})"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Speed of every node for every program, with its interval; the line at 1 is the node of the build."""
    nodes = list(dict.fromkeys(row.node for row in rows))
    programs = list(dict.fromkeys(row.program for row in rows))
    width = 0.8 / max(len(nodes), 1)
    figure, axes = plt.subplots(figsize=(max(4.0, 1.2 * len(programs) * max(len(nodes), 2)), 4.0), layout="constrained")
    for number, node in enumerate(nodes):
        found = [row for row in rows if row.node == node and row.speed is not None]
        places = [programs.index(row.program) + (number - (len(nodes) - 1) / 2) * width for row in found]
        speeds = [row.speed for row in found]
        # A time's upper end is a speed's lower one.
        below = [row.speed - row.speed * row.seconds / row.high for row in found]
        above = [row.speed * row.seconds / row.low - row.speed for row in found]
        axes.bar(places, speeds, width * 0.9, yerr=[below, above], capsize=3, label=node)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(programs)), programs)
    axes.set_ylabel("speed, reference node = 1")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare nodes by probes: one table, one figure.")
    parser.add_argument("probes", nargs="+", type=Path, metavar="FILE.probe")
    parser.add_argument("--here", action="store_true", help="run them on this machine, too")
    parser.add_argument("--on", action="append", default=[], metavar="[USER@]NODE[:PORT]", help="a node; repeatable")
    parser.add_argument("--repeat", type=int, default=5, help="how often each phase is timed (%(default)s)")
    parser.add_argument("--table", type=Path, default=Path("nodes.csv"), help="CSV to write (%(default)s)")
    parser.add_argument("--figure", type=Path, default=Path("nodes.png"), help="picture to write (%(default)s)")
    parser.add_argument("--identity", type=Path, help="private key to log in with")
    parser.add_argument("--known-hosts", type=Path, help="host keys that are trusted")
    parser.add_argument("--ssh-config", type=Path, help="instead of ~/.ssh/config")
    given = parser.parse_args()
    if not given.here and not given.on:
        parser.error("nothing to compare: give --here, --on, or both")
    ssh = probe.SshOptions(config=given.ssh_config, known_hosts=given.known_hosts, identity=given.identity)
    rows = [
        row for path in given.probes for row in measured(path, given.on, here=given.here, repeats=given.repeat, ssh=ssh)
    ]
    write_table(rows, given.table)
    draw(rows, given.figure)
    print_table(rows)


if __name__ == "__main__":
    main()
