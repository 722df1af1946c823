# SPDX-License-Identifier: Apache-2.0
"""`probe store`, `probe history` and `probe compare`."""

from __future__ import annotations

from dataclasses import asdict

import click

from probe.cli.parameters import Duration, Moment, Size, Throughput
from probe.cli.rows import (
    AS_JSON,
    FORMAT,
    STORE,
    TABLE,
    percent,
    print_outcome,
    print_rows,
    seconds,
    throughput,
)
from probe.cli.stored_results import import_, usages
from probe.cli.stored_runs import import_runs, runs, upgrade
from probe.terminal import say


@click.group()
def store() -> None:
    """Keep predictions, nodes and observed run times, and look at them."""


for _command in (import_, usages, runs, import_runs, upgrade):
    store.add_command(_command)


@store.command()
@click.option("--tag", help="Only those marked with this word.")
@FORMAT
@STORE
def probes(tag: str | None, form: str, url: str | None) -> None:
    """List probes."""
    from probe.store.opening import open_store
    from probe.store.reading import all_probes

    with open_store(url, create=False) as opened:
        rows = [{k: v for k, v in asdict(p).items() if k != "id"} for p in all_probes(opened, tag)]
    columns = {
        "name": lambda r: r["name"],
        "key": lambda r: r["key"][:12],
        "tags": lambda r: ",".join(r["tags"]),
        "program": lambda r: " ".join(r["program"]),
    }
    print_rows(rows, form, "probes", columns)


@store.command()
@FORMAT
@STORE
def nodes(form: str, url: str | None) -> None:
    """List nodes."""
    from probe.store.opening import open_store
    from probe.store.reading import all_nodes
    from probe.store.records import iso

    with open_store(url, create=False) as opened:
        found = [asdict(node) for node in all_nodes(opened)]
    rows = [{**{k: v for k, v in n.items() if k != "id"}, "last_seen": iso(n["last_seen"])} for n in found]
    columns = {
        "node": lambda r: r["name"],
        "cluster": lambda r: r["cluster"] or "-",
        "cores": lambda r: str(r["cores"]),
        "workers": lambda r: str(r["workers"]),
        "kernel": lambda r: r["kernel"],
        "features": lambda r: ",".join(r["features"]),
        "last seen": lambda r: r["last_seen"],
        "processor": lambda r: r["cpu"],
    }
    print_rows(rows, form, "nodes", columns)


@store.command()
@FORMAT
@STORE
def clusters(form: str, url: str | None) -> None:
    """List clusters and their networks."""
    from probe.store.opening import open_store
    from probe.store.reading import all_clusters

    with open_store(url, create=False) as opened:
        rows = [asdict(cluster) for cluster in all_clusters(opened)]
    columns = {
        "cluster": lambda r: r["name"] + (" (home)" if r["home"] else ""),
        "local network": lambda r: throughput(r["local_network"]),
        "inbound": lambda r: throughput(r["inbound"]),
        "outbound": lambda r: throughput(r["outbound"]),
        "latency": lambda r: f"{1e3 * r['latency']:g} ms",
    }
    print_rows(rows, form, "clusters", columns)


@store.command()
@click.argument("name")
@click.option("--cluster", help="Cluster that it belongs to.")
@click.option("--cpu", help="Model name of its processor, when that was changed.")
@click.option("--kernel", help="Kernel release, when that was changed.")
@click.option("--memory", type=Size(), help="Its memory, such as 64G.")
@click.option("--feature", "features", multiple=True, help="A feature that schedulers know it by. Repeatable.")
@click.option("--workers", type=click.IntRange(1, 100000), help="Tasks that it runs at once.")
@AS_JSON
@STORE
def node(
    name: str,
    cluster: str | None,
    cpu: str | None,
    kernel: str | None,
    memory: int | None,
    features: tuple[str, ...],
    workers: int | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Say what is known of a node; predictions made before a change of processor or kernel are stale."""
    from probe.store.describing import describe_node
    from probe.store.opening import open_store

    with open_store(url, create=False) as opened:
        stale = describe_node(
            opened,
            name,
            cluster=cluster,
            cpu=cpu,
            kernel=kernel,
            memory=memory,
            features=features or None,
            workers=workers,
        )
    said = f"{name}: its predictions are stale now; run the probes there again" if stale else ""
    print_outcome(as_json, said, node=name, stale=bool(stale))


@store.command()
@click.argument("name")
@click.option("--home/--away", default=None, help="Whether the master is in this cluster; one cluster is home.")
@click.option("--local-network", type=Throughput(), help="Bytes per second inside, such as 110M.")
@click.option("--inbound", type=Throughput(), help="Bytes per second from the master's cluster.")
@click.option("--outbound", type=Throughput(), help="Bytes per second to the master's cluster.")
@click.option("--latency", type=Duration(), help="One way, such as 20ms.")
@AS_JSON
@STORE
def cluster(
    name: str,
    home: bool | None,
    local_network: float | None,
    inbound: float | None,
    outbound: float | None,
    latency: float | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Enter what was measured of a cluster's network."""
    from probe.store.describing import describe_cluster
    from probe.store.opening import open_store

    with open_store(url) as opened:
        describe_cluster(
            opened,
            name,
            home=home,
            local_network=local_network,
            inbound=inbound,
            outbound=outbound,
            latency=latency,
        )
    print_outcome(as_json, "", cluster=name)


@store.command()
@click.argument("probe_name", metavar="PROBE")
@click.argument("node_name", metavar="NODE")
@click.argument("took", metavar="SECONDS", type=Duration())
@click.option("--at", "moment", type=Moment(), help="When the run ended. [default: now]")
@AS_JSON
@STORE
def observe(probe_name: str, node_name: str, took: float, moment: float | None, as_json: bool, url: str | None) -> None:
    """Feed back how long the whole program really took."""
    from probe.store.observing import observe as store_observation
    from probe.store.opening import open_store
    from probe.store.reading import find_node, find_probe

    with open_store(url, create=False) as opened:
        found = store_observation(
            opened, find_probe(opened, probe_name), find_node(opened, node_name), took, observed_at=moment
        )
    if found.ratio is None:
        said = f"{probe_name} on {node_name}: {seconds(took)}; nothing had been predicted before"
    else:
        held = "inside" if found.held else "outside"
        said = (
            f"{probe_name} on {node_name}: {seconds(took)}, predicted {seconds(found.predicted)} "
            f"({percent(found.ratio - 1)}), {held} the interval {seconds(found.low)} to {seconds(found.high)}"
        )
    print_outcome(as_json, said, run=found.to_json())


@store.command()
@click.option("--probe", "probe_name", help="Of this probe alone.")
@click.option("--node", "node_name", help="On this node alone.")
@click.option("--runs", is_flag=True, help="List every observed run, not the summary.")
@click.option(
    "--method",
    type=click.Choice(("probe", "emulation")),
    default="probe",
    show_default=True,
    help="What foretold: predictions of probes, or emulations.",
)
@FORMAT
@STORE
def calibration(
    probe_name: str | None, node_name: str | None, runs: bool, method: str, form: str, url: str | None
) -> None:
    """Show how well predictions, or emulations, foretold what was observed, by month."""
    from probe.store.emulations import foretold
    from probe.store.observing import calibration as calibrate
    from probe.store.observing import observed
    from probe.store.opening import open_store
    from probe.store.reading import find_node, find_probe

    with open_store(url, create=False) as opened:
        seen = (observed if method == "probe" else foretold)(
            opened,
            probe=find_probe(opened, probe_name) if probe_name else None,
            node=find_node(opened, node_name) if node_name else None,
        )
    if runs:
        columns = {
            "observed": lambda r: r["observed_at"],
            "probe": lambda r: r["probe"],
            "node": lambda r: r["node"],
            "took": lambda r: seconds(r["seconds"]),
            "predicted": lambda r: seconds(r["predicted"]),
            "interval": lambda r: "-" if r["low"] is None else f"{seconds(r['low'])} to {seconds(r['high'])}",
            "off by": lambda r: "-" if r["ratio"] is None else percent(r["ratio"] - 1),
            "held": lambda r: {True: "yes", False: "NO", None: "-"}[r["held"]],
            "from": lambda r: r["source"].split(":")[0],
        }
        print_rows([item.to_json() for item in seen], form, "runs", columns)
        return
    rows = [row.to_json() for row in calibrate(seen)]
    columns = {
        "period": lambda r: r["period"],
        "runs": lambda r: str(r["count"]),
        "interval held": lambda r: "-" if r["held"] is None else f"{100 * r['held']:.0f} % of 95 %",
        "bias": lambda r: percent(r["bias"]),
        "error": lambda r: f"{100 * r['error']:.1f} %",
        "worst": lambda r: f"{100 * r['worst']:.1f} %",
    }
    print_rows(rows, form, "calibration", columns)
    if not rows and form == TABLE:
        say("no observed run had a prediction; feed run times back with `probe store observe`")


@click.command()
@click.option("--probe", "probe_name", help="Of this probe alone.")
@click.option("--node", "node_name", help="On this node alone.")
@click.option("--limit", type=click.IntRange(1, 1000000), default=100, show_default=True, help="At most so many.")
@FORMAT
@STORE
def history(probe_name: str | None, node_name: str | None, limit: int, form: str, url: str | None) -> None:
    """List stored predictions, the newest first."""
    from probe.store.opening import open_store
    from probe.store.reading import find_node, find_probe
    from probe.store.reading import history as stored_history

    with open_store(url, create=False) as opened:
        found = stored_history(
            opened,
            probe=find_probe(opened, probe_name) if probe_name else None,
            node=find_node(opened, node_name) if node_name else None,
            limit=limit,
        )
    columns = {
        "#": lambda r: str(r["id"]),
        "made": lambda r: r["made_at"],
        "probe": lambda r: r["probe"],
        "node": lambda r: r["node"],
        "predicted": lambda r: seconds(r["seconds"]),
        "interval": lambda r: f"{seconds(r['low'])} to {seconds(r['high'])}",
        "covered": lambda r: f"{100 * r['coverage']:.1f} %",
        "": lambda r: f"stale: {r['stale']}" if r["stale"] else "",
    }
    print_rows([p.to_json() for p in found], form, "predictions", columns)


@click.command()
@click.argument("a")
@click.argument("b")
@FORMAT
@STORE
def compare(a: str, b: str, form: str, url: str | None) -> None:
    """Compare two nodes, two probes, or two predictions (#12 #15)."""
    from probe.store.opening import open_store
    from probe.store.reading import compare as stored_compare
    from probe.store.reading import geometric_mean

    with open_store(url, create=False) as opened:
        found = stored_compare(opened, a, b)
    rows = [{**asdict(row), "ratio": row.ratio} for row in found]
    columns = {
        "": lambda r: r["what"],
        a: lambda r: seconds(r["a"]),
        b: lambda r: seconds(r["b"]),
        "ratio": lambda r: f"{r['ratio']:.3f}" + (" (stale)" if r["stale"] else ""),
    }
    mean = geometric_mean(found)
    print_rows(rows, form, "comparison", columns, a=a, b=b, geometric_mean=mean)
    if form == TABLE and len(found) > 1:
        say(f"{b} takes {mean:.3f} times as long as {a} (geometric mean)")
