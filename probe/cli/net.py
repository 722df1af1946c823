# SPDX-License-Identifier: Apache-2.0
"""`probe net`: what the ways to candidate nodes carry."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli.node_options import SshChoice, ssh_options
from probe.cli.parameters import Size
from probe.cli.rows import FORMAT, STORE, TABLE, print_rows, throughput
from probe.terminal import one_line, say

if TYPE_CHECKING:
    from probe.ssh.throughput import Link


@click.command()
@ssh_options
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, help="For each direction.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Nodes at a time.")
@click.option("--cluster", metavar="NAME", help="Enter the medians into the store, as this cluster's network.")
@click.option(
    "--machine", type=click.Path(path_type=Path), help="Machine file for `probe simulate` to write, of these nodes."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("/var/tmp"),
    show_default=True,
    help="With --machine: of the nodes, on the disk to measure.",
)
@click.option(
    "--disk-bytes", type=Size(), default=268435456, show_default=True, help="With --machine: of a file read there."
)
@FORMAT
@STORE
def net(
    seconds: float, jobs: int, cluster: str | None, machine: Path | None, folder: Path, disk_bytes: int, form: str,
    url: str | None, **ssh: Any,
) -> None:  # fmt: skip
    """Measure bandwidth and latency to nodes; with --machine their disks, too."""
    from probe.ssh.throughput import measure_link

    _refuse_misuse(machine, disk_bytes)
    choice = SshChoice(**ssh)
    addresses = [address for group in choice.groups() for address in group]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        links = list(pool.map(lambda address: measure_link(address, choice.ssh(), seconds), addresses))
        if machine is not None:
            _write_machine(machine, links, choice, folder, disk_bytes, pool)
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
    if machine is not None and form == TABLE:
        say(one_line(f"wrote {machine}"))


def _refuse_misuse(machine: Path | None, disk_bytes: int) -> None:
    from probe.dataflow.measured import LEAST_BYTES

    given = click.get_current_context().get_parameter_source
    for name in ("folder", "disk_bytes"):
        if machine is None and given(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --machine")
    if disk_bytes < LEAST_BYTES:
        raise click.BadParameter(f"{disk_bytes}: {LEAST_BYTES} at least", param_hint="--disk-bytes")


def _write_machine(
    path: Path, links: Sequence[Link], choice: SshChoice, folder: Path, size: int, pool: Executor
) -> None:
    """The medians over all nodes, named as the file."""
    from probe.dataflow.measured import machine_text, measure_disk, measured_machine
    from probe.schedulers.usable import write_whole

    addresses = [address for group in choice.groups() for address in group]
    disks = list(pool.map(lambda address: measure_disk(address, choice.ssh(), folder, size), addresses))
    write_whole(path, machine_text(measured_machine(path.stem, links, disks)))
