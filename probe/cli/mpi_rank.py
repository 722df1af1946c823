# SPDX-License-Identifier: Apache-2.0
"""`probe mpi rank`: clusters by the predicted time of an MPI program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.errors import NodesFailed
from probe.cli.mpi_options import epochs_option, link_options, runner, where_of
from probe.cli.node_options import SshChoice, reaching_options
from probe.cli.parameters import QUIET
from probe.cli.rows import FORMAT, TABLE, print_rows, seconds
from probe.ssh.addresses import parse_address
from probe.terminal import one_line, say

if TYPE_CHECKING:
    from probe.candidates.result import RunResult
    from probe.mpi.probes.ranking import Cluster, Ranked

HERE = "here"
_XML = ".xml"
_SHOWN = 20
"""Characters of a number that is none."""


@click.command("rank")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    required=True,
    metavar="NODE,NETWORK[,RANKS]",
    help="One of its nodes, or here; a platform file (.xml) or the name of a network; ranks on a node. Repeatable.",
)
@link_options
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Repeats of each phase.")
@epochs_option
@reaching_options
@QUIET
@FORMAT
@click.argument("mpi_probe", metavar="PROBE", type=click.Path(path_type=Path, readable=False))
def rank_clusters(
    clusters: tuple[str, ...], repeat: int, epochs: bool, quiet: bool, form: str, mpi_probe: Path, **given: Any
) -> None:  # fmt: skip
    """Order clusters by the predicted time of the whole program: each a kind of node with its network."""
    from probe.mpi.probes.packing import opened
    from probe.mpi.probes.ranking import rank

    reaching = {name: given.pop(name) for name in ("accept_new_host_key", "identity", "ssh_config", "known_hosts")}
    ssh = SshChoice(on=(), hosts=None, **reaching).ssh()
    asked = [_cluster(text, given) for text in clusters]
    runs = {
        one.node: runner(None if one.node == HERE else (parse_address(one.node),), ssh, repeat, quiet) for one in asked
    }

    def run_on(node: str, probe: Path) -> RunResult:
        return runs[node](probe)

    with opened(mpi_probe) as probe:
        found = rank(probe, asked, run_on, limit=given["limit"], epochs=epochs)
    _print(found, form)
    failed = [one for one in found if one.error is not None]
    if failed and len(found) == 1:
        assert failed[0].error is not None
        raise failed[0].error
    if failed:
        names = ", ".join(f"{one.cluster.node} with {one.cluster.where.name}" for one in failed)
        raise NodesFailed(f"{len(failed)} of {len(found)} clusters have no prediction: {names}")


def _cluster(text: str, given: dict[str, Any]) -> Cluster:
    from probe.mpi.probes.ranking import Cluster

    node, *rest = text.split(",")
    if len(rest) not in (1, 2) or not node or not rest[0]:
        raise click.UsageError(f"--cluster {text}: NODE,NETWORK or NODE,NETWORK,RANKS is wanted")
    ranks = given["ranks_per_node"]
    if len(rest) == 2:
        # int() raises ValueError for more than 4300 digits.
        if not re.fullmatch("[0-9]{1,9}", rest[1]) or int(rest[1]) < 1:
            shown = rest[1] if len(rest[1]) <= _SHOWN else f"{rest[1][:_SHOWN]}..."
            raise click.UsageError(f"--cluster {node},{rest[0]}: {shown} is no number of ranks")
        ranks = int(rest[1])
    is_file = rest[0].endswith(_XML)
    named = {"platform": Path(rest[0]) if is_file else None, "network": None if is_file else rest[0]}
    return Cluster(node, where_of({**given, **named, "ranks_per_node": ranks}))


def _print(found: list[Ranked], form: str) -> None:
    rows = []
    for one in found:
        told = one.prediction
        rows.append({
            "node": one.cluster.node, "network": one.cluster.where.name, "ranks_per_node": one.cluster.where.per_node,
            "seconds": told and told.seconds, "low": told and told.low, "high": told and told.high,
            "computing": told and told.simulated.share, "as_fast_as_best": one.as_fast_as_best,
            "whole": (told and told.simulated.whole) or None,
            "error": None if one.error is None else str(one.error),
        })  # fmt: skip
    columns = {
        "node": lambda r: r["node"],
        "network": lambda r: r["network"],
        "ranks on a node": lambda r: str(r["ranks_per_node"]),
        "predicted": lambda r: "none" if r["seconds"] is None else seconds(r["seconds"]),
        "interval": lambda r: "" if r["low"] is None else f"{seconds(r['low'])} to {seconds(r['high'])}",
        "computing": lambda r: "" if r["computing"] is None else f"{r['computing']:.1%}",
        "": lambda r: r["error"] or ("may be the fastest" if r["as_fast_as_best"] else ""),
    }
    print_rows(rows, form, "clusters", columns)
    if form == TABLE:
        for reason in dict.fromkeys(row["whole"] for row in rows if row["whole"]):
            say(one_line(f"simulated whole, without epochs: {reason}"))
        warnings = [warning for one in found if one.prediction for warning in one.prediction.warnings]
        for warning in dict.fromkeys(warnings):
            say(one_line(f"warning: {warning}"))
