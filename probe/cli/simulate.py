# SPDX-License-Identifier: Apache-2.0
"""`probe simulate`: an application model on a network that nobody owns."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.model import seconds_text
from probe.cli.model_options import GRID, MACHINE, MODEL, NAMED, PROBES, SETTINGS, SOCKET, flow, machine
from probe.cli.rows import AS_JSON, FORMAT_VERSION
from probe.terminal import one_line, say, say_json


@click.command()
@MODEL
@click.option("--network", required=True, metavar="NAME", help="torus:4x4x4, fattree:4,3, dragonfly:p=2, slimfly:q=5.")
@GRID
@MACHINE(required=False)
@SOCKET
@SETTINGS
@NAMED
@PROBES
@click.option("--bandwidth", type=float, default=2e9, show_default=True, help="Of a link, bytes a second.")
@click.option("--latency", type=float, default=1e-6, show_default=True, help="Of a link, seconds.")
@click.option("--packet", type=click.IntRange(1), default=512, show_default=True, help="Bytes of a packet.")
@click.option("--limit", type=float, default=3600.0, show_default=True, help="Seconds that the replay may take.")
@click.option("--routes-only", is_flag=True, help="Sum messages and hops; simulate no time.")
@AS_JSON
def simulate(
    model_file: Path, network: str, grid: str, machine_file: Path | None, socket: str, settings: dict[str, float],
    named: str, probes: tuple[str, ...], node: str, url: str | None, bandwidth: float, latency: float, packet: int,
    limit: float, routes_only: bool, as_json: bool,
) -> None:  # fmt: skip
    """Sum a model's messages over the routes of a network, and simulate its time there."""
    from probe.models.communication import grid_of, size_of
    from probe.models.probed import seconds_of_probes
    from probe.simulation.networks import network_of
    from probe.simulation.plan import plan
    from probe.simulation.platform import Links
    from probe.simulation.replay import replay
    from probe.simulation.traffic import traffic

    ranks, on = grid_of(grid), network_of(network)
    asked = flow(model_file, settings, named)
    sent = traffic(asked, ranks, on, packet=packet)
    busiest = max(sent.loads.values(), default=0)
    replayed = None
    if not routes_only:
        computing = None if machine_file is None else machine(machine_file, socket)
        steps = plan(asked, computing, probes=seconds_of_probes(probes, node, url))
        replayed = replay(steps, ranks, on, Links(bandwidth, latency), limit=limit)
    if as_json:
        say_json(
            {
                "format_version": FORMAT_VERSION, "model": asked.application.name, "network": network,
                "ranks": size_of(ranks), "messages": sent.messages, "bytes": sent.bytes, "packets": sent.packets,
                "hops_per_packet": sent.hops_per_packet, "hops_per_byte": sent.hops_per_byte,
                "collectives": sum(sent.collectives.values()), "busiest_link_bytes": busiest,
                "seconds": None if replayed is None else replayed.seconds,
                "simulation": None if replayed is None else
                {"seconds": replayed.wall, "events": replayed.events,
                 "events_per_second": replayed.events_per_second},
            }
        )  # fmt: skip
        return
    say(one_line(f"{asked.application.name}: {size_of(ranks)} ranks on {network}, {on.nodes} nodes"))
    say(
        f"{sent.messages} messages, {sent.bytes} bytes, {sent.packets} packets of {packet}; hops "
        f"{sent.hops_per_packet:.4f} per packet, {sent.hops_per_byte:.4f} per byte"
    )
    say(f"collectives {sum(sent.collectives.values())}; busiest link {busiest} bytes")
    if replayed is not None:
        say(
            f"time {seconds_text(replayed.seconds)}, simulated in {replayed.wall:.1f} s "
            f"({replayed.events_per_second:.0f} events a second)"
        )
