# SPDX-License-Identifier: Apache-2.0
"""The `probe` command: a thin layer over the Python API."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from checkpoint.errors import INTERRUPTED_EXIT_CODE, ProbeError
from checkpoint.program import DEFAULT_ISA, ISA_BASELINES
from probe import building, running, showing, trimming
from probe.build_options import BuildOptions
from probe.candidates.options import CandidateOptions, candidate_options, run_on_candidates
from probe.commands import COMMANDS
from probe.commands.rows import AS_JSON
from probe.commands.slurm import check_slurm_options, run_as_jobs, slurm_options
from probe.doctor import run_doctor
from probe.leaving import LEAVING, leave_on
from probe.node import phases
from probe.node.measuring import DEFAULT_REPEATS
from probe.parameters import DIMENSIONS, MAX_PHASES, SEED, Interval, Length, Share, Size, Warmup
from probe.profile import SECONDS
from probe.progress import display_for
from probe.scrubbing import scrubbed
from probe.selection import RECONSTRUCT, SELECTIONS, SelectionOptions
from probe.simpoint import read_points
from probe.tracers import TRACERS
from reducer.compression import COMPRESSIONS, Compression
from reducer.reduction import REDUCTIONS, Reduction

_PROGRAM = click.argument("program", metavar="-- PROGRAM [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
_TRACER = click.option(
    "--tracer", type=click.Choice(TRACERS), default="auto", show_default=True, help="What counts blocks; auto: native."
)
_INTERVAL = click.option(
    "--interval", type=Interval(), help="Length of an interval: 50ms (the default); valgrind: instructions, 100M."
)
_ISA = click.option(
    "--isa",
    type=click.Choice(list(ISA_BASELINES)),
    default=DEFAULT_ISA,
    show_default=True,
    help="CPU features the C library may choose its functions by.",
)
_STDIN = click.option(
    "--stdin", type=click.Path(exists=True, dir_okay=False), default="/dev/null", help="File for standard input."
)
_SCRUB = click.option(
    "--scrub-env",
    multiple=True,
    metavar="PATTERN",
    help="Run the program without these variables; all: with no others than harmless ones. Repeatable.",
)
_COMPRESS = click.option(
    "--compress",
    type=click.Choice(COMPRESSIONS),
    default="gzip",
    show_default=True,
    help="How the probe is compressed; zstd is smaller, but not every node reads it.",
)
_TARGET_ERROR = click.option(
    "--target-error", type=Share(), help="Repeat until the 95 % interval is within this share, such as 2%."
)
_QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
_PROBE = click.argument("probe_file", metavar="FILE.probe", type=click.Path(path_type=Path, readable=False))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="probe")
def cli() -> None:
    """Predict how long a program takes on another machine, from seconds of it."""


@cli.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended.")
@AS_JSON
def doctor(fix: bool, as_json: bool) -> None:
    """Check what building and running probes needs."""
    sys.exit(run_doctor(fix=fix, as_json=as_json))


@cli.command()
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The probe to write."
)
@_INTERVAL
@click.option(
    "--warmup",
    type=Warmup(),
    default=1,
    show_default=True,
    help="Intervals before a region; auto: as few as do, tried on the phases with most time.",
)
@click.option(
    "--selection",
    type=click.Choice(SELECTIONS),
    default=RECONSTRUCT,
    show_default=True,
    help="How phases are chosen; simpoint: by code alone; random: a baseline.",
)
@MAX_PHASES
@DIMENSIONS
@SEED
@_TRACER
@_ISA
@_STDIN
@_SCRUB
@click.option(
    "--reduce",
    "how",
    type=click.Choice(REDUCTIONS),
    default="drop",
    show_default=True,
    help="What becomes of pages that a phase does not touch.",
)
@click.option(
    "--external",
    multiple=True,
    metavar="PATH",
    help="Leave this file, or the files in this folder, out: every node must have them. Repeatable.",
)
@_COMPRESS
@click.option("--with-criu", is_flag=True, help="Carry CRIU along, for nodes that have none and are to use it.")
@_TARGET_ERROR
@click.option(
    "--work", type=click.Path(path_type=Path, readable=False), help="Keep every stage's result in this folder."
)
@click.option(
    "--simpoints",
    type=click.Path(path_type=Path, readable=False),
    help="Points chosen elsewhere, in SimPoint's format; with --weights and an exact --tracer.",
)
@click.option("--weights", type=click.Path(path_type=Path, readable=False), help="The weights of --simpoints.")
@click.option("--resume", is_flag=True, help="Go on after the last finished stage in --work.")
@AS_JSON
@_QUIET
@_PROGRAM
def build(
    output: Path,
    interval: Length | None,
    warmup: int | Literal["auto"],
    selection: str,
    max_phases: int,
    dimensions: int,
    seed: int,
    tracer: str,
    isa: str,
    stdin: str,
    scrub_env: tuple[str, ...],
    how: Reduction,
    external: tuple[str, ...],
    compress: Compression,
    with_criu: bool,
    target_error: float | None,
    work: Path | None,
    simpoints: Path | None,
    weights: Path | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Build a probe of PROGRAM."""
    if (simpoints is None) != (weights is None):
        raise click.UsageError("--simpoints and --weights go together")
    options = BuildOptions(
        tracer=tracer,
        interval=interval.for_tracer(tracer) if interval else None,
        warmup=warmup,
        isa=isa,
        reduce=how,
        external=external,
        compress=compress,
        with_criu=with_criu,
        selection=SelectionOptions(method=selection, max_phases=max_phases, dimensions=dimensions, seed=seed),
        points=read_points(simpoints, weights) if simpoints and weights else (),
        target_error=target_error,
    )
    building.build(
        program,
        output,
        options=options,
        stdin=stdin,
        env=scrubbed(os.environ, scrub_env),
        work=work,
        resume=resume,
        display=display_for(quiet),
    )
    _print_description(output, as_json)


@cli.command()
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The profile to write."
)
@_INTERVAL
@_TRACER
@_ISA
@_STDIN
@_SCRUB
@AS_JSON
@_QUIET
@_PROGRAM
def trace(
    output: Path,
    interval: Length | None,
    tracer: str,
    isa: str,
    stdin: str,
    scrub_env: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Trace PROGRAM into a profile (stage 1 alone)."""
    length = interval.for_tracer(tracer) if interval else None
    profile = building.trace(
        program,
        output,
        tracer=tracer,
        interval=length,
        isa=isa,
        stdin=stdin,
        env=scrubbed(os.environ, scrub_env),
        display=display_for(quiet),
    )
    if as_json:
        click.echo(json.dumps(showing.trace_json(profile, output), indent=2))
        return
    counted = (
        f"{profile.removed_sites} of {profile.installed_sites} sites removed"
        if profile.unit == SECONDS
        else f"{float(profile.instructions().sum()):.0f} instructions"
    )
    click.echo(
        f"{output}: {profile.intervals} intervals, {len(profile.blocks.site)} blocks, "
        f"{float(profile.seconds.sum()):.3f} s, {counted}"
    )


@cli.command()
@_PROBE
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The smaller probe to write."
)
@click.option("--phases", type=click.IntRange(1, 1000), help="Keep this many phases.")
@click.option("--coverage", type=click.FloatRange(0, 1), help="Keep phases with this share of the run's time.")
@click.option("--max-size", type=Size(), help="Keep what fits in this size, such as 20M.")
@_COMPRESS
@AS_JSON
def trim(
    probe_file: Path,
    output: Path,
    phases: int | None,
    coverage: float | None,
    max_size: int | None,
    compress: Compression,
    as_json: bool,
) -> None:
    """Write a smaller probe with the most important phases of another."""
    if sum(x is not None for x in (phases, coverage, max_size)) != 1:
        raise click.UsageError("give exactly one of --phases, --coverage and --max-size")
    trimmed = trimming.trim(
        probe_file, output, phases=phases, coverage=coverage, max_size=max_size, compression=compress
    )
    if as_json:
        click.echo(json.dumps(trimmed.to_json(), indent=2))
    else:
        showing.print_trimmed(trimmed, Console())


@cli.command()
@_PROBE
@click.option("--tradeoff", is_flag=True, help="What keeping fewer phases would give (probe trim).")
@AS_JSON
def show(probe_file: Path, tradeoff: bool, as_json: bool) -> None:
    """Show what a probe contains and how far to trust it."""
    if not tradeoff:
        _print_description(probe_file, as_json)
    elif as_json:
        click.echo(json.dumps(trimming.tradeoff_json(probe_file), indent=2))
    else:
        showing.print_tradeoff(trimming.tradeoff(probe_file), Console())


@cli.command()
@_PROBE
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=DEFAULT_REPEATS,
    show_default=True,
    help="How often each phase is timed.",
)
@click.option("--min-coverage", type=click.FloatRange(0, 1), help="Share of the time that must succeed. [default: 0.9]")
@click.option(
    "--restorer",
    type=click.Choice(phases.RESTORERS),
    default=phases.AUTO,
    show_default=True,
    help="direct: as any user; criu: needs root; auto: direct, and criu for what that cannot restore.",
)
@click.option(
    "--only-recorded-calls",
    is_flag=True,
    help="End a phase that makes a system call it did not make when the probe was built (direct restorer).",
)
@click.option("--touch-in-order", is_flag=True, help="First touch a phase's pages in recorded order (direct restorer).")
@_TARGET_ERROR
@candidate_options
@slurm_options
@AS_JSON
@_QUIET
def run(
    probe_file: Path,
    repeat: int,
    min_coverage: float | None,
    restorer: str,
    only_recorded_calls: bool,
    touch_in_order: bool,
    target_error: float | None,
    slurm: bool,
    partition: str | None,
    per_node_type: bool,
    as_json: bool,
    quiet: bool,
    **candidates: Any,
) -> None:
    """Run a probe, here or on other nodes, and predict the whole program's time there."""
    nodes = CandidateOptions(**candidates)
    check_slurm_options(slurm, partition, per_node_type, nodes.named)
    if nodes.named:
        if target_error is not None:
            raise ProbeError("--target-error: not on other nodes yet; leave it out, and give more --repeat instead")
        orders = nodes.orders(repeat, restorer, only_recorded_calls, touch_in_order)
        run_on_candidates(probe_file, nodes, orders, min_coverage, as_json, quiet)
        return
    if slurm:
        options = [f"--repeat={repeat}", f"--restorer={restorer}", *["--only-recorded-calls"] * only_recorded_calls]
        options += ["--touch-in-order"] * touch_in_order
        options += [f"--min-coverage={min_coverage}"] * (min_coverage is not None)
        options += [f"--target-error={target_error}"] * (target_error is not None)
        run_as_jobs(probe_file, options, partition, per_node_type, as_json)
        return
    result = running.run(
        probe_file,
        repeats=repeat,
        min_coverage=min_coverage,
        restorer=restorer,
        only_recorded_calls=only_recorded_calls,
        touch_in_order=touch_in_order,
        target_error=target_error,
        display=display_for(quiet),
    )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        showing.print_result(result, Console())


for _command in COMMANDS:
    cli.add_command(_command)


def _print_description(probe_file: Path, as_json: bool) -> None:
    description = showing.show(probe_file)
    if as_json:
        click.echo(json.dumps(description, indent=2))
    else:
        showing.print_probe(description, Console())


class _Interrupted(KeyboardInterrupt):
    """Where KeyboardInterrupt itself passes through code given as text, as of a dataclass that is being made, Python
    ends by the signal whatever status is asked for."""


def _ending(number: int) -> BaseException:
    return _Interrupted() if number == signal.SIGINT else SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every error of ours becomes one message and its exit code."""
    # What is ignored stays so: nohup and shells' background jobs rely on it.
    leave_on([number for number in LEAVING if signal.getsignal(number) is not signal.SIG_IGN], _ending)
    try:
        # By its name also as `python -m probe`: the shell's completion asks by it (probe/commands/completion.py).
        cli.main(args=list(arguments) if arguments is not None else None, prog_name="probe", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ProbeError as error:
        click.echo(f"probe: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("probe: interrupted; nothing was left running", err=True)
        sys.exit(INTERRUPTED_EXIT_CODE)


if __name__ == "__main__":
    main()
