# SPDX-License-Identifier: Apache-2.0
"""`probe mpi`: MPI programs recorded, and their ranks replayed alone."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.parameters import PROGRAM, Size
from probe.cli.rows import AS_JSON
from probe.terminal import one_line, say, say_json

MPI_VERSION = 1
"""Of the JSON of `probe mpi`."""

_RECORDING = click.argument("recording_folder", metavar="RECORDING", type=click.Path(path_type=Path, readable=False))


@click.group()
def mpi() -> None:
    """Record MPI programs, and replay one rank alone."""


@mpi.command("record")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="Folder to make for it."
)
@click.option("--rank", "ranks", multiple=True, type=click.IntRange(0), help="Keep its answers. [default: all ranks']")
@click.option("--max-inbox", type=Size(), default="8G", show_default=True, help="Most bytes of a rank's answers.")
@click.option("--mpicc", metavar="COMMAND", help="Compiler of the program's MPI library. [default: found]")
@AS_JSON
@PROGRAM
def record_ranks(
    output: Path,
    ranks: tuple[int, ...],
    max_inbox: int,
    mpicc: str | None,
    as_json: bool,
    program: tuple[str, ...],
) -> None:
    """Run an MPI program with its launcher, and record every rank."""
    from probe.mpi.record import record
    from probe.mpi.show import recording_json, recording_lines

    made = record(program, output, ranks=ranks or None, most_inbox=max_inbox, compiler=mpicc)
    if as_json:
        say_json({"format_version": MPI_VERSION, **recording_json(made)})
        return
    for line in recording_lines(made):
        say(one_line(line))


@mpi.command("show")
@_RECORDING
@AS_JSON
def show_recording(recording_folder: Path, as_json: bool) -> None:
    """Print what a recording holds, all of it checked."""
    from probe.mpi.recording import read_recording
    from probe.mpi.show import recording_json, recording_lines

    found = read_recording(recording_folder)
    if as_json:
        say_json({"format_version": MPI_VERSION, **recording_json(found)})
        return
    for line in recording_lines(found):
        say(one_line(line))


@mpi.command("replay")
@click.option("--rank", type=click.IntRange(0), required=True, help="The rank to run.")
@AS_JSON
@_RECORDING
def replay_rank(rank: int, as_json: bool, recording_folder: Path) -> None:
    """Run one recorded rank alone, and compare what it sends."""
    from probe.mpi.recording import read_recording
    from probe.mpi.replay import replay

    done = replay(read_recording(recording_folder), rank)
    if as_json:
        told = {"rank": done.rank, "status": done.status, "seconds": done.seconds}
        say_json({"format_version": MPI_VERSION, **told, "answers": done.answers, "sent": done.sent})
        return
    say(
        f"rank {done.rank} alone: {done.seconds:.3f} s, {done.answers} calls answered, {done.sent} messages sent as "
        f"recorded, exit status {done.status}",
        err=True,
    )


@mpi.command("simulate")
@click.option("--platform", type=click.Path(path_type=Path, readable=False), help="Platform file of SimGrid.")
@click.option("--network", metavar="NAME", help="A network instead, such as torus:4x4x4.")
@click.option("--bandwidth", type=float, default=2e9, show_default=True, help="Of its links, bytes a second.")
@click.option("--latency", type=float, default=1e-6, show_default=True, help="Of its links, seconds.")
@click.option("--ranks-per-node", type=click.IntRange(1), default=1, show_default=True, help="Ranks on each host.")
@click.option(
    "--mapping", type=click.Choice(("block", "cyclic")), default="block", show_default=True,
    help="Neighbours on one host, or from host to host.",
)  # fmt: skip
@click.option("--computing", type=float, default=1.0, show_default=True, help="Times that computing takes.")
@click.option("--limit", type=float, default=3600.0, show_default=True, help="Seconds that simulating may take.")
@AS_JSON
@_RECORDING
def simulate_recording(
    platform: Path | None,
    network: str | None,
    bandwidth: float,
    latency: float,
    ranks_per_node: int,
    mapping: str,
    computing: float,
    limit: float,
    as_json: bool,
    recording_folder: Path,
) -> None:
    """Play a recording on a network: its calls by SimGrid, its computing as recorded."""
    from probe.mpi.recording import read_recording
    from probe.mpi.simulate import Where, simulate
    from probe.simulation.platform import Links

    if (platform is None) == (network is None):
        raise click.UsageError("one of --platform and --network is wanted")
    where = Where(platform, network or "", Links(bandwidth, latency), ranks_per_node, mapping)
    found = simulate(read_recording(recording_folder), where, scale=computing, limit=limit)
    share = sum(found.computing) / max(sum(found.ranks), 1e-12)
    if as_json:
        told = {"network": where.name, "seconds": found.seconds, "computing": share, "waiting": 1 - share}
        ranks = [{"seconds": end, "computing": own} for end, own in zip(found.ranks, found.computing, strict=True)]
        say_json({"format_version": MPI_VERSION, **told, "ranks": ranks, "calls": found.calls, "took": found.wall})
        return
    say(one_line(f"{where.name}: {found.seconds:.6f} s, computing {share:.1%}, communicating {1 - share:.1%}"))
    say(f"{found.calls} calls of {len(found.ranks)} ranks, simulated in {found.wall:.1f} s")
