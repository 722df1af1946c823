# SPDX-License-Identifier: Apache-2.0
"""`probe run`: a probe on this node or on others, and the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli.figures import percent, seconds
from probe.cli.node_options import CandidateOptions, candidate_options, run_on_candidates
from probe.cli.parameters import BUDGET, PROBE_FILE, QUIET, TARGET_ERROR
from probe.cli.rows import AS_JSON
from probe.cli.slurm import check_slurm_options, run_as_jobs, slurm_options
from probe.node.measuring import DEFAULT_REPEATS
from probe.node.phases import AUTO, RESTORERS
from probe.prediction.busyness import said
from probe.progress import display_for
from probe.terminal import console, one_line, say, say_json

if TYPE_CHECKING:
    from probe.candidates.result import RunResult
    from probe.candidates.wanted_width import WantedWidth


@click.command()
@PROBE_FILE
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    help="How often each phase is timed. [default: 5, and more within --budget]",
)
@click.option("--min-coverage", type=click.FloatRange(0, 1), help="Share of the time that must succeed. [default: 0.9]")
@click.option(
    "--restorer",
    type=click.Choice(RESTORERS),
    default=AUTO,
    show_default=True,
    help="direct: as any user; criu: needs root; auto: direct, and criu for what that cannot restore.",
)
@click.option(
    "--carried-restorer",
    is_flag=True,
    help="Restore with the program that the probe carries, code of its author, instead of one's own.",
)
@click.option(
    "--only-recorded-calls",
    is_flag=True,
    help="End a phase that makes a system call it did not make when the probe was built (direct restorer).",
)
@click.option("--touch-in-order", is_flag=True, help="First touch a phase's pages in recorded order (direct restorer).")
@TARGET_ERROR
@BUDGET
@candidate_options
@slurm_options
@AS_JSON
@QUIET
def run(
    probe_file: Path,
    repeat: int | None,
    min_coverage: float | None,
    restorer: str,
    carried_restorer: bool,
    only_recorded_calls: bool,
    touch_in_order: bool,
    target_error: float | None,
    budget: int | None,
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
    repeats = repeat or DEFAULT_REPEATS
    if nodes.named:
        orders = nodes.orders(
            repeats, restorer, carried_restorer=carried_restorer, only_recorded_calls=only_recorded_calls,
            touch_in_order=touch_in_order,
        )  # fmt: skip
        wanted = _wanted_width(repeat, target_error, budget)
        run_on_candidates(probe_file, nodes, orders, wanted, min_coverage, as_json, quiet)
        return
    if slurm:
        options = [f"--repeat={repeat}"] * (repeat is not None) + [f"--restorer={restorer}"]
        options += ["--only-recorded-calls"] * only_recorded_calls
        options += ["--carried-restorer"] * carried_restorer + ["--touch-in-order"] * touch_in_order
        options += [f"--min-coverage={min_coverage}"] * (min_coverage is not None)
        options += [f"--target-error={target_error}"] * (target_error is not None)
        options += [f"--budget={budget}"] * (budget is not None)
        run_as_jobs(probe_file, options, partition, per_node_type, as_json, budget or 0.0)
        return
    from probe.candidates.local import run as run_here

    wanted = _wanted_width(repeat, target_error, budget)
    result = run_here(
        probe_file,
        repeats=repeats,
        min_coverage=min_coverage,
        restorer=restorer,
        carried_restorer=carried_restorer,
        only_recorded_calls=only_recorded_calls,
        touch_in_order=touch_in_order,
        target_error=wanted.target_error,
        budget=wanted.budget,
        best_effort=wanted.best_effort,
        display=display_for(quiet),
    )
    if as_json:
        say_json(result.to_json())
    else:
        print_result(result)


def _wanted_width(repeat: int | None, target_error: float | None, budget: int | None) -> WantedWidth:
    """What the options ask for; where they give neither repeats nor a budget, the default one."""
    from probe.candidates.wanted_width import WantedWidth
    from probe.prediction.target_error import DEFAULT_BUDGET

    best_effort = repeat is None and budget is None
    return WantedWidth(target_error, DEFAULT_BUDGET if best_effort else budget, best_effort)


def print_result(result: RunResult) -> None:
    """The prediction for people; never a number without its interval."""
    from rich.table import Table

    p = result.prediction
    table = Table(box=None, pad_edge=False)
    for name in ("phase", "time share", "T_ref", "T_here", "ratio", "status"):
        table.add_column(name, justify="right")
    for phase in result.to_json()["phases"]:
        here, ref = phase["t_cand"], phase["t_ref"]
        table.add_row(
            str(phase["id"]), percent(phase["time_share"]), seconds(ref), seconds(here),
            f"{here / ref:.3f}" if here and ref else "-", phase["status"],
        )  # fmt: skip
    console().print(table)
    for phase in result.phases:
        if phase.failure:
            say(one_line(f"failed: {phase.failure}"))
    say(
        f"predicted: {p.seconds:.3f} s, 95 % interval {p.low:.3f} to {p.high:.3f} s "
        f"({percent(p.coverage)} of the run covered)"
    )
    if p.undisturbed is not None:
        alone = p.undisturbed
        say(f"undisturbed: {alone.seconds:.3f} s, 95 % interval {alone.low:.3f} to {alone.high:.3f} s")
    busy = result.slowdowns()
    if any(busy.values()):
        say(f"busy: here {said(busy['node'])}; on the reference node {said(busy['reference'])}")
    say("estimators: " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in p.estimators.items()))
    if result.narrowed is not None and not result.narrowed.limit:
        say(f"target error: {result.narrowed.sentence()}")
    for warning in result.warnings:
        say(one_line(f"warning: {warning}"))
