# SPDX-License-Identifier: Apache-2.0
"""`probe rank`: nodes by predicted time, and which of them to use for many tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.errors import NotInStore
from probe.cli.parameters import Size
from probe.cli.rows import FORMAT, JSON, STORE, TABLE, print_rows, seconds
from probe.cli.scaling_options import TypeWait
from probe.terminal import say, say_json

if TYPE_CHECKING:
    from probe.ranking import Decision
    from probe.ranking.measures import Measured, Ranked
    from probe.store.emulations import StoredEmulation
    from probe.store.opening import Store
    from probe.store.records import StoredProbe


@click.command()
@click.argument("probe_name", metavar="[PROBE]", required=False)
@click.option("--pool", type=click.Path(path_type=Path), help="Clusters and nodes, in place of the store's.")
@click.option("--tasks", type=click.IntRange(1, 10**12), help="Decide which nodes run so many tasks.")
@click.option("--task-size", type=Size(), default=0, show_default=True, help="Bytes sent with a task.")
@click.option("--result-size", type=Size(), default=0, show_default=True, help="Bytes that come back.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Least efficiency.",
)
@click.option("--explain", is_flag=True, help="Say of every node and cluster why, not only of those used.")
@click.option("--limit", type=click.IntRange(1, 1000000), help="Without --tasks: at most so many nodes.")
@click.option(
    "--by",
    type=click.Choice(("time", "energy", "end")),
    default="time",
    show_default=True,
    help="Without --tasks: order by run time, joules, or wait and run.",
)
@click.option(
    "--wait", "waits", type=TypeWait(), multiple=True, help="TYPE=DURATION in the queue, in place of the runs' median."
)
@FORMAT
@STORE
def rank(
    probe_name: str | None,
    pool: Path | None,
    tasks: int | None,
    task_size: int,
    result_size: int,
    threshold: float,
    explain: bool,
    limit: int | None,
    by: str,
    waits: tuple[tuple[str, float], ...],
    form: str,
    url: str | None,
) -> None:
    """Order nodes by what is predicted of PROBE; with --tasks, choose those that are worth using."""
    from probe.ranking.decision import decide
    from probe.ranking.measures import rank_candidates
    from probe.ranking.pool import Workload, pool_from_file, pool_from_store
    from probe.store.opening import open_store
    from probe.store.reading import candidates, find_probe

    if probe_name is not None and probe_name.endswith(".mpiprobe"):
        raise click.UsageError(f"{probe_name}: is of an MPI program; clusters for it are ordered by `probe mpi rank`")
    if probe_name is None and (pool is None or tasks is None):
        raise click.UsageError("name a probe, or give --pool with times and --tasks")
    if tasks is None:
        if pool is not None:
            raise click.UsageError("--pool goes with --tasks; without it the store's nodes are ordered")
        if waits and by != "end":
            raise click.UsageError("--wait goes with --by end")
        with open_store(url, create=False) as opened:
            probe, emulated = _probe_or_emulations(opened, str(probe_name))
            nodes = candidates(opened, probe, limit=limit if by == "time" else None) if probe else []
            found = rank_candidates(opened, nodes, by, dict(waits), probe.threads if probe else 1)[:limit]
        _print_candidates(found, emulated[:limit], by, form)
        return
    if by != "time":
        raise click.UsageError("--by goes without --tasks: tasks are given out by time")
    work = Workload(tasks, task_size, result_size)
    if probe_name is None:
        chosen = pool_from_file(pool) if pool else None
    else:
        with open_store(url, create=False) as opened:
            probe = find_probe(opened, probe_name)
            if pool:
                chosen = pool_from_file(pool, candidates(opened, probe), threads=probe.threads)
            else:
                chosen = pool_from_store(opened, probe)
    assert chosen is not None
    _print_decision(decide(chosen, work, threshold=threshold), form, explain)


def _probe_or_emulations(opened: Store, name: str) -> tuple[StoredProbe | None, list[StoredEmulation]]:
    """The probe of that name, and what was emulated of the same command; without a probe emulations of that name.

    Raises NotInStore without either.
    """
    from probe.store.emulations import stored_emulations
    from probe.store.reading import find_probe

    try:
        probe = find_probe(opened, name)
    except NotInStore:
        found = stored_emulations(opened, name=name)
        if not found:
            raise
        return None, found
    return probe, stored_emulations(opened, program=probe.program)


def _print_emulations(emulated: Sequence[StoredEmulation], predicted: set[str]) -> None:
    """For people, apart from predictions. `predicted`: nodes that a probe has predicted for."""
    if not emulated:
        return
    columns = {
        "node": lambda r: r["node"],
        "cluster": lambda r: r["cluster"] or "-",
        "emulated": lambda r: seconds(r["seconds"]),
        "interval": lambda r: "none" if r["low"] is None else f"{seconds(r['low'])} to {seconds(r['high'])}",
        "kernel": lambda r: r["kernel"],
        "": lambda r: f"stale: {r['stale']}" if r["stale"] else "prefer the probe" if r["node"] in predicted else "",
    }
    say()
    say("emulations, which are no predictions:")
    print_rows([one.to_json() for one in emulated], TABLE, "emulations", columns)


def _print_candidates(found: Sequence[Ranked], emulated: Sequence[StoredEmulation], by: str, form: str) -> None:
    from probe.store.records import iso

    usable = [known for one in found if not one.candidate.unusable and (known := one.measure(by))]
    rows = []
    for one in found:
        measured, candidate = one.measure(by), one.candidate
        # Where intervals overlap, the order may be the other way round.
        overlaps = bool(usable) and not candidate.unusable and measured is not None and measured.low <= usable[0].high
        more = {**_keys("joules", one.joules), "energy_source": one.energy_source}
        ends = {"wait": one.wait, **_keys("end", one.end), "as_fast_as_best": overlaps}
        rows.append({**asdict(candidate), "made_at": iso(candidate.made_at), **more, **ends})
    first = {"time": "may be the fastest", "energy": "may need the least", "end": "may end first"}[by]
    columns = {
        "node": lambda r: r["node"],
        "cluster": lambda r: r["cluster"] or "-",
        "predicted": lambda r: seconds(r["seconds"]),
        "interval": lambda r: f"{seconds(r['low'])} to {seconds(r['high'])}",
        **_COLUMNS[by],
        "#": lambda r: str(r["prediction"]),
        "": lambda r: r["unfit"] or (f"stale: {r['stale']}" if r["stale"] else first if r["as_fast_as_best"] else ""),
    }
    print_rows(rows, form, "candidates", columns, emulations=[one.to_json() for one in emulated])
    if form == TABLE:
        _print_emulations(emulated, {one.candidate.node for one in found if not one.candidate.unusable})


def _keys(name: str, measured: Measured | None) -> dict[str, float | None]:
    if measured is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: measured.value, f"{name}_low": measured.low, f"{name}_high": measured.high}


def _joules(row: dict[str, Any]) -> str:
    if row["joules"] is None:
        return "unknown"
    return f"{row['joules']:.4g} J ({row['joules_low']:.4g} to {row['joules_high']:.4g})"


def _end(row: dict[str, Any]) -> str:
    if row["end"] is None:
        return "unknown"
    return f"{seconds(row['end'])} ({seconds(row['end_low'])} to {seconds(row['end_high'])})"


_COLUMNS: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "time": {},
    "energy": {"energy": _joules, "by": lambda r: r["energy_source"] or "-"},
    "end": {"waits": lambda r: "-" if r["wait"] is None else seconds(r["wait"]), "ends after": _end},
}
"""Columns of one order alone."""


def _print_decision(decision: Decision, form: str, explain: bool) -> None:
    said = decision.to_json()
    if form == JSON:
        say_json(said)
        return
    nodes: list[dict[str, Any]] = [node for node in said["nodes"] if explain or node["used"]]
    node_columns = {
        "node": lambda r: r["name"],
        "cluster": lambda r: r["cluster"] or "-",
        "a task": lambda r: seconds(r["seconds"]),
        "workers": lambda r: str(r["workers"]),
        "tasks": lambda r: str(r["tasks"]),
        "": lambda r: r["reason"],
    }
    if form != TABLE:
        print_rows(nodes, form, "nodes", node_columns)
        return
    cluster_columns = {
        "cluster": lambda r: (r["name"] or "-") + (" (home)" if r["home"] else ""),
        "nodes": lambda r: f"{r['nodes_used']} of {r['nodes']}",
        "tasks": lambda r: str(r["tasks"]),
        "tasks/s": lambda r: f"{r['steady']:.4g}" if r["used"] else "-",
        "compute": lambda r: f"{r['compute']:.4g}" if r["used"] else "-",
        "local": lambda r: _rate(r["local_network"]),
        "inbound": lambda r: _rate(r["inbound"]),
        "outbound": lambda r: _rate(r["outbound"]),
        "efficiency": lambda r: f"{100 * r['efficiency']:.1f} %" if r["used"] else "-",
        "": lambda r: r["reason"] or f"limited by {r['limit']}",
    }
    print_rows([c for c in said["clusters"] if explain or c["used"]], form, "clusters", cluster_columns)
    say()
    print_rows(nodes, form, "nodes", node_columns)
    say()
    nodes_used = sum(cluster.nodes_used for cluster in decision.clusters)
    clusters_used = sum(cluster.used for cluster in decision.clusters)
    say(
        f"{decision.tasks} tasks take {seconds(decision.seconds)} "
        f"({seconds(decision.low)} to {seconds(decision.high)}) on {nodes_used} of {len(decision.nodes)} nodes in "
        f"{clusters_used} of {len(decision.clusters)} clusters; "
        f"efficiency {100 * decision.efficiency:.1f} % (T_best {seconds(decision.best_seconds)})"
    )
    if not decision.met:
        say(f"warning: no selection reaches the threshold of {100 * decision.threshold:g} %; this is the nearest")
    for warning in decision.warnings:
        say(f"warning: {warning}")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
