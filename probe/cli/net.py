# SPDX-License-Identifier: Apache-2.0
"""`probe net`: what the ways to candidate nodes carry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from probe.cli.node_options import SshChoice, ssh_options
from probe.cli.rows import FORMAT, STORE, print_rows, throughput


@click.command()
@ssh_options
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, help="For each direction.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Nodes at a time.")
@click.option("--cluster", metavar="NAME", help="Enter the medians into the store, as this cluster's network.")
@FORMAT
@STORE
def net(seconds: float, jobs: int, cluster: str | None, form: str, url: str | None, **ssh: Any) -> None:
    """Measure bandwidth and latency to nodes."""
    from probe.ssh.throughput import measure_link

    choice = SshChoice(**ssh)
    addresses = [address for group in choice.groups() for address in group]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        links = list(pool.map(lambda address: measure_link(address, choice.ssh(), seconds), addresses))
    if cluster is not None:
        from statistics import median

        from probe.store.describing import describe_cluster
        from probe.store.opening import open_store

        with open_store(url) as opened:
            describe_cluster(
                opened,
                cluster,
                inbound=median(link.inbound for link in links),
                outbound=median(link.outbound for link in links),
                latency=median(link.latency for link in links),
            )
    columns = {
        "node": lambda r: r["node"],
        "there": lambda r: throughput(round(r["inbound"], -4)),
        "back": lambda r: throughput(round(r["outbound"], -4)),
        "latency": lambda r: f"{1e3 * r['latency']:.2f} ms",
    }
    print_rows([link.to_json() for link in links], form, "links", columns)
