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
