# SPDX-License-Identifier: Apache-2.0
"""Options of several commands of `probe mpi`, and what they ask for: networks, and runs of probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from probe.candidates.result import RunResult
    from probe.mpi.simulate import Where
    from probe.ssh.addresses import Address
    from probe.ssh.interface import SshOptions

Command = TypeVar("Command", bound=Callable[..., Any])

MPI_VERSION = 1
"""Of the JSON of `probe mpi`."""

_NAMED = (
    click.option("--platform", type=click.Path(path_type=Path, readable=False), help="Platform file of SimGrid."),
    click.option("--network", metavar="NAME", help="A network instead, such as torus:4x4x4."),
)
_LINKS = (
    click.option("--bandwidth", type=float, default=2e9, show_default=True, help="Of its links, bytes a second."),
    click.option("--latency", type=float, default=1e-6, show_default=True, help="Of its links, seconds."),
    click.option("--ranks-per-node", type=click.IntRange(1), default=1, show_default=True, help="Ranks on each host."),
    click.option(
        "--mapping", type=click.Choice(("block", "cyclic")), default="block", show_default=True,
        help="Neighbours on one host, or from host to host.",
    ),
    click.option("--limit", type=float, default=3600.0, show_default=True, help="Seconds that simulating may take."),
)  # fmt: skip


def network_options(command: Command) -> Command:
    """Add the options of one network; the command gets them as keywords, for `where_of`."""
    return link_options(_added(command, _NAMED))


def link_options(command: Command) -> Command:
    """Those that tell no network, but what it is made of."""
    return _added(command, _LINKS)


def epochs_option(command: Command) -> Command:
    """Whether all calls are simulated, or some of those that repeat."""
    told = "Simulate some of the repeated epochs, for the others too."
    return _added(command, (click.option("--epochs", is_flag=True, help=told),))


def _added(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def where_of(given: dict[str, Any]) -> Where:
    """The network of a command's keywords."""
    from probe.mpi.simulate import Where
    from probe.simulation.platform import Links

    if (given["platform"] is None) == (given["network"] is None):
        raise click.UsageError("one of --platform and --network is wanted")
    links = Links(given["bandwidth"], given["latency"])
    return Where(given["platform"], given["network"] or "", links, given["ranks_per_node"], given["mapping"])


def runner(nodes: tuple[Address, ...] | None, ssh: SshOptions, repeat: int, quiet: bool) -> Callable[[Path], RunResult]:
    """What runs the probe of a rank on a node of `nodes`, which are all alike; None: on this one."""
    from probe.progress import display_for

    if nodes is None:
        from probe.candidates.local import run

        return lambda probe: run(probe, repeats=repeat, display=display_for(quiet))
    from probe.candidates.agent_client import Orders
    from probe.candidates.remote import run_on

    def on_node(probe: Path) -> RunResult:
        (done,) = run_on(probe, [nodes], ssh=ssh, orders=Orders(repeats=repeat))
        if done.result is None:
            assert done.error is not None
            raise done.error
        return done.result

    return on_node
