# SPDX-License-Identifier: Apache-2.0
"""`probe build`: a program in, a probe out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from probe.cli.parameters import (
    BUDGET,
    COMPRESS,
    DIMENSIONS,
    INTERVAL,
    ISA,
    MAX_PHASES,
    PROGRAM,
    QUIET,
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
from probe.formats.choices import RECONSTRUCT, SELECTIONS, SelectionOptions
from probe.progress import display_for
from reducer.choices import REDUCTIONS, Compression, Reduction


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
@COMPRESS
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
    compress: Compression,
    with_criu: bool,
    target_error: float | None,
    budget: int | None,
    worker_program: str | None,
    worker: int | None,
    work: Path | None,
    simpoints: Path | None,
    weights: Path | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Build a probe of PROGRAM."""
    if worker_program is not None and worker is not None:
        raise click.UsageError("--program and --worker exclude each other")
    if (simpoints is None) != (weights is None):
        raise click.UsageError("--simpoints and --weights go together")
    from probe.pipeline.build import build as build_probe
    from probe.pipeline.options import BuildOptions
    from probe.prediction.target_error import DEFAULT_TARGET
    from probe.selection.simpoint import read_points

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
        target_error=DEFAULT_TARGET if target_error is None else target_error,
        budget=budget,
        best_effort=target_error is None,
        program=worker_program,
        worker=worker,
    )
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
    print_description(output, as_json)
