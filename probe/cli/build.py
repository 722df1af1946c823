# SPDX-License-Identifier: Apache-2.0
"""`probe build`: a program in, a probe out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from checkpoint.errors import Diverged, ProbeError, ProgramUnsupported
from probe.cli.parameters import (
    BUDGET,
    COMPRESS,
    DIMENSIONS,
    INTERVAL,
    ISA,
    MAKES,
    MAX_PHASES,
    PROGRAM,
    QUIET,
    RUNS,
    SCRUB,
    SEED,
    STDIN,
    TARGET_ERROR,
    TRACER,
    WORKER,
    WORKER_PROGRAM,
    Length,
    Warmup,
)
from probe.cli.rows import AS_JSON
from probe.cli.show import print_description
from probe.formats.choices import AUTO, RECONSTRUCT, SELECTIONS, SelectionOptions
from probe.formats.phase_record import CRIU, DIRECT
from probe.progress import display_for
from probe.terminal import say
from reducer.choices import REDUCTIONS, Compression, Reduction

if TYPE_CHECKING:
    from probe.pipeline.options import BuildOptions

WITHOUT_PROBE = "without a probe, `probe profile` records what a program uses, and `probe emulate` uses the same"
WITHOUT_PROBE_OF_MPI = "for MPI programs use `probe mpi build`"


@click.command()
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The probe to write."
)
@INTERVAL
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
@TRACER
@ISA
@STDIN
@SCRUB
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
@MAKES
@COMPRESS
@RUNS
@click.option(
    "--capture",
    type=click.Choice((AUTO, DIRECT, CRIU)),
    default=AUTO,
    show_default=True,
    help="direct: as any user; criu: needs root; auto: direct, as root by CRIU what direct cannot hold.",
)
@click.option("--flow", is_flag=True, help="Record what each phase executes, for `probe check`.")
@click.option(
    "--synthetic-data", is_flag=True, help="Leave out contents of memory that a phase's time does not depend on."
)
@click.option(
    "--synthetic-budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="What --synthetic-data may take; without it, with --flow, half of the build's time, and what packing saves.",
)
@click.option("--with-criu", is_flag=True, help="Carry CRIU along, for nodes that have none and are to use it.")
@TARGET_ERROR
@BUDGET
@WORKER_PROGRAM
@WORKER
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
@click.option("--estimate", is_flag=True, help="Run PROGRAM once, and say what building takes; write nothing.")
@AS_JSON
@QUIET
@PROGRAM
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
    makes: tuple[str, ...],
    compress: Compression,
    runs: int | None,
    capture: str,
    flow: bool,
    synthetic_data: bool,
    synthetic_budget: float | None,
    with_criu: bool,
    target_error: float | None,
    budget: int | None,
    worker_program: str | None,
    worker: int | None,
    work: Path | None,
    simpoints: Path | None,
    weights: Path | None,
    resume: bool,
    estimate: bool,
    as_json: bool,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Build a probe of PROGRAM."""
    if worker_program is not None and worker is not None:
        raise click.UsageError("--program and --worker exclude each other")
    if (simpoints is None) != (weights is None):
        raise click.UsageError("--simpoints and --weights go together")
    if estimate and (as_json or resume):
        raise click.UsageError("--estimate is for people, before a build: leave out --json and --resume")
    from probe.pipeline.build import build as build_probe
    from probe.pipeline.options import BuildOptions
    from probe.prediction.target_error import DEFAULT_TARGET
    from probe.selection.simpoint import read_points

    options = BuildOptions(
        tracer=tracer,
        interval=interval.for_tracer(tracer) if interval else None,
        warmup=warmup,
        isa=isa,
        runs=runs,
        reduce=how,
        external=external,
        makes=makes,
        compress=compress,
        flow=flow,
        synthetic_data=synthetic_data,
        synthetic_budget=synthetic_budget,
        with_criu=with_criu,
        capture=capture,
        selection=SelectionOptions(method=selection, max_phases=max_phases, dimensions=dimensions, seed=seed),
        points=read_points(simpoints, weights) if simpoints and weights else (),
        target_error=DEFAULT_TARGET if target_error is None else target_error,
        budget=budget,
        best_effort=target_error is None,
        program=worker_program,
        worker=worker,
    )
    if estimate:
        _print_estimate(program, options, stdin, work)
        return
    try:
        build_probe(
            program,
            output,
            options=options,
            stdin=stdin,
            scrub=scrub_env,
            work=work,
            resume=resume,
            display=display_for(quiet),
        )
    except (ProgramUnsupported, Diverged) as error:
        error.args = (f"{str(error).removesuffix('.')}; {_otherwise(program)}",)
        raise
    print_description(output, as_json)


def _otherwise(program: tuple[str, ...]) -> str:
    """What to do instead of a probe of this command."""
    from elftools.common.exceptions import ELFError

    from probe.mpi.library.found import programs_in

    with suppress(ProbeError, OSError, ELFError):
        if programs_in(program):
            return WITHOUT_PROBE_OF_MPI
    return WITHOUT_PROBE


def _print_estimate(program: tuple[str, ...], options: BuildOptions, stdin: str, work: Path | None) -> None:
    from probe.inspection.build_estimate import estimate_build
    from probe.report.wording import seconds, size

    found = estimate_build(program, options, stdin=stdin, work=work)
    stages = ", ".join(f"{name} {runs}" for name, runs in found.runs.items())
    say(f"one run      {seconds(found.seconds)} (CPU {seconds(found.cpu)}), {size(found.resident)} of memory")
    say(f"full runs    {sum(found.runs.values())}: {stages}")
    say(f"time         {seconds(found.run_seconds)} for these runs, and some seconds for each phase")
    say(
        f"work folder  at most {size(found.room)} in {found.folder}, with {found.phases} phases; "
        f"{size(found.free)} are free there"
    )
    if found.room > found.free:
        say("warning: that may not fit: give --work on a larger disk, or fewer --max-phases", err=True)
