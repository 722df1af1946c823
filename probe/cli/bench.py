# SPDX-License-Identifier: Apache-2.0
"""`probe bench`: runs of kernels on some numbers of cores, into the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli.node_options import SshChoice, ssh_options
from probe.cli.rows import AS_JSON, FORMAT_VERSION, STORE, seconds
from probe.cli.scaling_options import APPLICATION, KERNELS, SETTINGS, LongDuration, Numbers
from probe.terminal import say, say_json

if TYPE_CHECKING:
    from probe.scaling.bench import Order
    from probe.store.parallel_run import ParallelRun


@click.command()
@APPLICATION
@KERNELS
@click.option("--cores", required=True, type=Numbers(), help="Numbers of cores: 1,2,4 or 1..16, which doubles.")
@click.option("--node-type", required=True, help="What these nodes are called in the store.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each.")
@click.option(
    "--limit", "limit", type=LongDuration(), default="1h", show_default=True, help="Longest run, such as 30m."
)
@click.option("--folder", metavar="PATH", help="Where it runs. [default: where the description is]")
@click.option("--slurm", is_flag=True, help="Run as jobs of Slurm.")
@click.option("--partition", metavar="NAME", help="Of Slurm. [default: Slurm's]")
@ssh_options
@SETTINGS
@AS_JSON
@STORE
def bench(
    application_file: Path,
    kernels: tuple[str, ...],
    cores: tuple[int, ...],
    node_type: str,
    repeat: int,
    limit: float,
    folder: str | None,
    slurm: bool,
    partition: str | None,
    settings: dict[str, float],
    as_json: bool,
    url: str | None,
    **ssh: Any,
) -> None:
    """Run kernels here, on a node over SSH, or as Slurm's jobs, and store times, MPI times and energy."""
    from probe.applications.application import read_application
    from probe.applications.inputs import configuration
    from probe.scaling.bench import order
    from probe.store.opening import open_store
    from probe.store.runs import store_runs

    choice = SshChoice(**ssh)
    if slurm and (choice.on or choice.hosts):
        raise click.UsageError("--slurm chooses the nodes: it does not go with --on and --hosts")
    if partition and not slurm:
        raise click.UsageError("--partition goes with --slurm")
    run = _runner(choice, slurm, partition, limit)
    application = read_application(application_file)
    wanted = [application.kernel(name) for name in kernels] or list(application.kernels.values())
    orders = []
    for kernel in wanted:
        own = {name: value for name, value in settings.items() if name in kernel.parameters}
        found = configuration(application, kernel, own)
        orders += [
            order(application, kernel, found, node_type, number, folder) for number in cores for _ in range(repeat)
        ]
    done = []
    with open_store(url) as opened:
        for one in orders:
            made = run(one)
            # Each at once: what was measured is kept, whatever the next one does.
            store_runs(opened, [made])
            done.append(made.to_json())
            if not as_json:
                say(_shown(made))
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "runs": done})


def _shown(run: ParallelRun) -> str:
    split = "MPI not measured" if run.mpi is None else f"computing {seconds(run.computing)}, MPI {seconds(run.mpi)}"
    energy = "" if run.energy is None else f", {run.energy:.4g} J by {run.energy_source}"
    return f"{run.app}.{run.kernel} on {run.cores} cores: {seconds(run.runtime)} ({split}){energy}"


def _runner(choice: SshChoice, slurm: bool, partition: str | None, limit: float) -> Callable[[Order], ParallelRun]:
    if slurm:
        from probe.slurm.bench_jobs import run_as_job

        return lambda one: run_as_job(one, limit, partition)
    if not (choice.on or choice.hosts):
        from probe.scaling.bench import run_here

        return lambda one: run_here(one, limit)
    groups = choice.groups()
    if len(groups) != 1 or len(groups[0]) != 1:
        raise click.UsageError("a benchmark runs on one node at a time; give one --on")
    return lambda one: _over_ssh(one, choice, limit)


def _over_ssh(one: Order, choice: SshChoice, limit: float) -> ParallelRun:
    from probe.scaling.bench import Measured, received, run_of
    from probe.ssh.reach import connect

    (address,) = choice.groups()[0]
    with connect(address, choice.ssh()) as connection, connection.start("sh -s") as channel:
        channel.send(one.script().encode(), 60.0)
        channel.end_of_input()
        return run_of(one, received(channel.receive, limit + 60.0), Measured())
