# SPDX-License-Identifier: Apache-2.0
"""`probe mpi`: MPI programs recorded, and their ranks replayed alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checkpoint.paths import cache_dir
from probe.cli.mpi_options import MPI_VERSION, epochs_option, network_options, runner, where_of
from probe.cli.mpi_rank import rank_clusters
from probe.cli.node_options import SshChoice, ssh_options
from probe.cli.parameters import MAKES, PROGRAM, QUIET, RUNS, Size
from probe.cli.rows import AS_JSON
from probe.formats.choices import AUTO
from probe.formats.phase_record import CRIU, DIRECT
from probe.terminal import one_line, say, say_json

if TYPE_CHECKING:
    from probe.mpi.simulate import Simulated, Where
    from probe.ssh.addresses import Address

Command = TypeVar("Command", bound=Callable[..., Any])

_RECORDING = click.argument("recording_folder", metavar="RECORDING", type=click.Path(path_type=Path, readable=False))

_MAX_INBOX = click.option(
    "--max-inbox", type=Size(), default="8G", show_default=True, help="Most bytes of a rank's answers."
)
_MPICC = click.option("--mpicc", metavar="COMMAND", help="Compiler of the program's MPI library. [default: found]")
_GATHER = click.option(
    "--gather", is_flag=True, help="Nodes share no folder: ranks bring the recorder along, and send their recordings."
)


@click.group()
def mpi() -> None:
    """Record MPI programs, replay ranks alone, and predict the whole on another network."""


@mpi.command("record")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="Folder to make for it."
)
@click.option("--rank", "ranks", multiple=True, type=click.IntRange(0), help="Keep its answers. [default: all ranks']")
@_MAX_INBOX
@_MPICC
@_GATHER
@MAKES
@AS_JSON
@PROGRAM
def record_ranks(
    output: Path,
    ranks: tuple[int, ...],
    max_inbox: int,
    mpicc: str | None,
    gather: bool,
    makes: tuple[str, ...],
    as_json: bool,
    program: tuple[str, ...],
) -> None:
    """Run an MPI program with its launcher, and record every rank."""
    from probe.mpi.record import record
    from probe.mpi.show import recording_json, recording_lines

    made = record(
        program, output, ranks=ranks or None, most_inbox=max_inbox, compiler=mpicc, gather=gather, makes=makes
    )
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


@mpi.command("compare")
@AS_JSON
@click.argument("first", metavar="RECORDING", type=click.Path(path_type=Path, readable=False))
@click.argument("second", metavar="RECORDING", type=click.Path(path_type=Path, readable=False))
def compare_recordings(first: Path, second: Path, as_json: bool) -> None:
    """Compare the calls of two recorded runs of one program; the first that differs ends with exit code 7."""
    from probe.mpi.compare import refuse_differing
    from probe.mpi.recording import read_recording

    known = read_recording(first)
    calls = refuse_differing(known, read_recording(second))
    if as_json:
        say_json({"format_version": MPI_VERSION, "ranks": len(known.ranks), "calls": calls})
        return
    say(f"{len(known.ranks)} ranks made the same {calls} calls in both runs")


@mpi.command("replay")
@click.option("--rank", type=click.IntRange(0), required=True, help="The rank to run.")
@MAKES
@AS_JSON
@_RECORDING
def replay_rank(rank: int, makes: tuple[str, ...], as_json: bool, recording_folder: Path) -> None:
    """Run one recorded rank alone, and compare what it sends."""
    from probe.mpi.recording import read_recording
    from probe.mpi.replay import replay

    done = replay(read_recording(recording_folder), rank, makes=makes)
    if as_json:
        told = {"rank": done.rank, "status": done.status, "seconds": done.seconds}
        compared = {"sent": done.sent, "differing": done.differing}
        say_json({"format_version": MPI_VERSION, **told, "answers": done.answers, **compared})
        return
    other = f", {done.differing} of them with other data, first in call {done.first}" if done.differing else ""
    say(
        f"rank {done.rank} alone: {done.seconds:.3f} s, {done.answers} calls answered, {done.sent} messages sent as "
        f"recorded{other}, exit status {done.status}",
        err=True,
    )


@mpi.command("simulate")
@network_options
@click.option("--computing", type=float, default=1.0, show_default=True, help="Times that computing takes.")
@epochs_option
@AS_JSON
@_RECORDING
def simulate_recording(computing: float, epochs: bool, as_json: bool, recording_folder: Path, **given: Any) -> None:
    """Play a recording on a network: its calls by SimGrid, its computing as recorded."""
    from probe.mpi.recording import read_recording
    from probe.mpi.simulate import simulate

    where = where_of(given)
    recording = read_recording(recording_folder)
    found = simulate(recording, where, scale=computing, limit=given["limit"], epochs=epochs)
    if as_json:
        say_json({"format_version": MPI_VERSION, "network": where.name, **_simulated_json(found)})
        return
    _print_simulated(where, found)


def _simulated_json(found: Simulated) -> dict[str, Any]:
    return {
        "seconds": found.seconds,
        "computing": found.share,
        "ranks": [
            {"seconds": end, "computing": own} for end, own in zip(found.ranks, found.computing, strict=True)
        ],
        "calls": found.calls,
        "played": found.played,
        "epochs": found.epochs,
        "error": found.error,
        "whole": found.whole or None,
        "took": found.wall,
    }  # fmt: skip


def _print_simulated(where: Where, found: Simulated) -> None:
    say(one_line(f"{where.name}: {found.seconds:.6f} s, computing {found.share:.1%}"))
    say(f"{found.calls} calls of {len(found.ranks)} ranks, simulated in {found.wall:.1f} s")
    if found.epochs:
        share = found.error / max(found.seconds, 1e-12)
        say(f"{found.played} of them were played, for {found.epochs} epochs: known to {share:.1%}")
    elif found.whole:
        say(one_line(f"simulated whole, without epochs: {found.whole}"))


@mpi.command("report")
@network_options
@click.option("--computing", type=float, default=1.0, show_default=True, help="Times that computing takes.")
@click.option("-o", "--output", type=click.Path(path_type=Path, readable=False), help="The page to write.")
@click.option(
    "--figures",
    type=click.Path(path_type=Path, readable=False),
    help="Folder for PNG and CSV of every figure; with or without a page.",
)
@QUIET
@AS_JSON
@_RECORDING
def report_recording(
    computing: float,
    output: Path | None,
    figures: Path | None,
    quiet: bool,
    as_json: bool,
    recording_folder: Path,
    **given: Any,
) -> None:
    """Simulate a recording, and draw it: ranks over time, critical path, links, what other networks would buy."""
    # Matplotlib's list of fonts belongs beside our own caches; where it is, is read when the library is imported.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir() / "matplotlib"))
    from probe.mpi.recording import read_recording
    from probe.mpi.report.writing import write_mpi_report
    from probe.progress import display_for

    if output is None and figures is None:
        raise click.UsageError("give -o for a page, or --figures for a folder, or both")
    done = write_mpi_report(
        read_recording(recording_folder), where_of(given), page=output, figures=figures, scale=computing,
        limit=given["limit"], display=display_for(quiet),
    )  # fmt: skip
    if as_json:
        say_json({"format_version": MPI_VERSION, **done.to_json()})
        return
    found = done.analysis
    for place in (output, figures):
        if place is not None:
            say(one_line(f"{place}: {len(found.ranks)} ranks on {found.where.name}"))
    say(f"{found.seconds:.6f} s; {found.without_network:.6f} s without a network")
    for one in found.changes:
        say(f"{one.name}: {one.seconds:.6f} s")


@mpi.command("build")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="Probe to write (.mpiprobe)."
)
@click.option(
    "--capture",
    type=click.Choice((AUTO, DIRECT, CRIU)),
    default=AUTO,
    show_default=True,
    help="How checkpoints are taken.",
)
@_MAX_INBOX
@_MPICC
@_GATHER
@QUIET
@MAKES
@RUNS
@AS_JSON
@click.argument("words", metavar="RECORDING | -- PROGRAM [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
def build_probes(
    output: Path,
    capture: str,
    max_inbox: int,
    mpicc: str | None,
    gather: bool,
    quiet: bool,
    makes: tuple[str, ...],
    runs: int | None,
    as_json: bool,
    words: tuple[str, ...],
) -> None:
    """Build a probe of each rank that stands for others, from a recording or a run recorded now."""
    from probe.mpi.probes.building import probe_name
    from probe.mpi.probes.keeping import kept_folder, kept_or_recorded
    from probe.mpi.probes.packing import build_packed
    from probe.mpi.recording import read_recording
    from probe.pipeline.options import BuildOptions
    from probe.progress import display_for
    from reducer.output_file import check_target

    check_target(output)
    if len(words) == 1 and not Path(words[0]).is_file():
        recording = read_recording(Path(words[0]))
    else:
        recording, is_kept = kept_or_recorded(
            words, output, most_inbox=max_inbox, compiler=mpicc, gather=gather, makes=makes
        )
        how = "used again" if is_kept else "recorded"
        told = f"{how}, {len(recording.ranks)} ranks, {recording.seconds:.3f} s"
        say(one_line(f"{kept_folder(output)}: {told}"), err=True)
    options = BuildOptions(capture=capture, makes=makes, runs=runs)
    clusters = build_packed(recording, output, options=options, display=lambda _: display_for(quiet))
    if as_json:
        listed = [
            {**asdict(one), "ranks": list(one.ranks), "probe": probe_name(one) if one.probed else ""}
            for one in clusters
        ]
        kept = {"recording": str(recording.folder), "warnings": list(recording.warnings)}
        say_json({"format_version": MPI_VERSION, "probe": str(output), **kept, "clusters": listed})
        return
    say(one_line(f"{output}: {len(recording.ranks)} ranks, {sum(one.probed for one in clusters)} probes"))
    for one in clusters:
        ranks = ", ".join(map(str, one.ranks))
        said = f"rank {one.representative}: {one.computing:.3f} s of computing, stands for {ranks}"
        said += f"; sends other data in {one.differing} messages alone" if one.differing else ""
        if not one.probed:
            say(one_line(f"{said}; too little for a probe, scaled as the others"))
            continue
        say(one_line(said if one.error is None else f"{said}; error for rank {one.verified}: {one.error:+.1%}"))
    for warning in recording.warnings:
        say(one_line(f"warning: {warning}"), err=True)


@mpi.command("run")
@network_options
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Repeats of each phase.")
@epochs_option
@ssh_options
@QUIET
@AS_JSON
@click.argument("mpi_probe", metavar="PROBE", type=click.Path(path_type=Path, readable=False))
def run_probes(repeat: int, epochs: bool, quiet: bool, as_json: bool, mpi_probe: Path, **given: Any) -> None:
    """Run the probes here or on a node, and predict the whole program on a network."""
    from probe.mpi.probes.packing import opened
    from probe.mpi.probes.predicting import predict

    choice = SshChoice(**{name: given[name] for name in SshChoice.__dataclass_fields__})
    where = where_of(given)
    with opened(mpi_probe) as probe:
        run = runner(_nodes(choice), choice.ssh(), repeat, quiet)
        found = predict(probe, run, where, limit=given["limit"], epochs=epochs)
    if as_json:
        prediction = {"seconds": found.seconds, "low": found.low, "high": found.high}
        clusters = [
            {
                "representative": one.cluster.representative,
                "ratio": one.ratio,
                "low": one.low,
                "high": one.high,
                "alone": one.alone,
            }
            for one in found.ratios
        ]
        told = {"network": where.name, "prediction": prediction, "clusters": clusters}
        simulation = _simulated_json(found.simulated)
        say_json({"format_version": MPI_VERSION, **told, "simulation": simulation, "warnings": list(found.warnings)})
        return
    for one in found.ratios:
        say(f"rank {one.cluster.representative}: computing {one.ratio:.3f} times ({one.low:.3f} to {one.high:.3f})")
    _print_simulated(where, found.simulated)
    say(f"predicted: {found.seconds:.3f} s, 95 % interval {found.low:.3f} to {found.high:.3f} s")
    for warning in found.warnings:
        say(one_line(f"warning: {warning}"))


@mpi.command("net")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="Platform file to write."
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Hosts to describe, all alike.")
@_MPICC
@AS_JSON
@click.argument("launcher", metavar="[-- LAUNCHER [ARG]...]", nargs=-1, type=click.UNPROCESSED)
def measure_network(output: Path, nodes: int, mpicc: str | None, as_json: bool, launcher: tuple[str, ...]) -> None:
    """Measure the network between two ranks, and describe it for simulations. Launcher: mpirun -n 2 without one."""
    from probe.mpi.network.describing import write_measured
    from probe.mpi.network.measuring import LAUNCHER, measure
    from reducer.output_file import check_target

    check_target(output)
    found = measure(launcher or LAUNCHER, mpicc)
    write_measured(found, output, nodes=nodes)
    rows = zip(found.sizes.tolist(), found.half.tolist(), found.both.tolist(), found.streamed.tolist(), strict=True)
    listed = [{"bytes": int(row[0]), "half": row[1], "both": row[2], "streamed": row[3]} for row in rows]
    if as_json:
        told = {"platform": str(output), "hosts": list(found.hosts), "eager": found.eager, "overlap": found.overlap}
        say_json({"format_version": MPI_VERSION, **told, "sizes": listed})
        return
    say(one_line(f"{output}: {nodes} hosts, measured between {' and '.join(found.hosts)}"))
    say("   bytes  one way us   MB/s   both ways MB/s   many MB/s")
    for one in listed[::6]:
        size = one["bytes"]
        rates = (size / one["half"] / 1e6, 2 * size / one["both"] / 1e6, size / one["streamed"] / 1e6)
        say(f"{size:8}  {1e6 * one['half']:10.2f}  {rates[0]:5.0f}  {rates[1]:15.0f}  {rates[2]:10.0f}")
    say(f"sends return before they are received up to {found.eager} bytes; overlap {found.overlap:.0%}")


def _nodes(choice: SshChoice) -> tuple[Address, ...] | None:
    """Those of --on or --hosts, all alike; None: this one."""
    if not (choice.on or choice.hosts):
        return None
    groups = choice.groups()
    if len(groups) != 1:
        raise click.UsageError("all ranks run on nodes of one kind: give one --on")
    return groups[0]


mpi.add_command(rank_clusters)
