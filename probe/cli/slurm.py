# SPDX-License-Identifier: Apache-2.0
"""`probe slurm`, and what `probe run --slurm` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from checkpoint.errors import SlurmError
from probe.cli.rows import AS_JSON, JSON, STORE, TABLE, print_outcome, print_rows, seconds
from probe.cli.scaling_options import APPLICATION, SETTINGS
from probe.terminal import say, say_json

Command = TypeVar("Command", bound=Callable[..., Any])
_MARGIN = click.option(
    "--margin",
    type=click.FloatRange(1, 100),
    default=1.2,
    show_default=True,
    help="Time limits: the interval's upper end times this.",
)


@click.group()
def slurm() -> None:
    """Use predictions in Slurm."""


@slurm.command()
@click.option("--client", is_flag=True, help="Not job_submit.lua, but cli_filter.lua, which sbatch runs.")
@click.option("--conf", type=click.Path(path_type=Path), help="Folder of slurm.conf. [default: by SLURM_CONF]")
@click.option("--table", type=click.Path(path_type=Path), help="Table to read. [default: beside slurm.conf]")
@click.option(
    "--max-age", type=click.IntRange(1, 3650), default=14, show_default=True, help="Days after which it is ignored."
)
@AS_JSON
def install(client: bool, conf: Path | None, table: Path | None, max_age: int, as_json: bool) -> None:
    """Write the hook that gives jobs time limits and preferences, beside slurm.conf."""
    from probe.slurm.facts import conf_folder
    from probe.slurm.installing import install as install_hook
    from probe.slurm.table import TABLE_NAME

    folder = (conf or conf_folder()).absolute()
    done = install_hook(folder, (table or folder / TABLE_NAME).absolute(), client=client, max_age_days=max_age)
    written = [str(path) for path in (done.hook, done.script) if path is not None]
    print_outcome(
        as_json,
        "\n".join([*(f"written: {path}" for path in written), "to do: " + "\n       ".join(done.advice)]),
        written=written,
        advice=list(done.advice),
    )


@slurm.command("export")
@click.argument("names", metavar="[PROBE]...", nargs=-1)
@click.option("--table", type=click.Path(path_type=Path), help="Table to write. [default: beside slurm.conf]")
@click.option("--commands", is_flag=True, help="Also know jobs by their one command.")
@_MARGIN
@AS_JSON
@STORE
def export_table(
    names: tuple[str, ...], table: Path | None, commands: bool, margin: float, as_json: bool, url: str | None
) -> None:
    """Write the table that the hook reads: of the probes named, or all."""
    from probe.schedulers.usable import usable, write_whole
    from probe.slurm.facts import conf_folder, refresh, slurm_facts
    from probe.slurm.table import TABLE_NAME, advise, table_text
    from probe.store.opening import open_store
    from probe.store.reading import find_probe

    facts = slurm_facts()
    with open_store(url, create=False) as opened:
        for stale in refresh(opened, facts.nodes):
            say(f"probe: {stale} has another kernel now: its predictions are stale", err=True)
        predicted = usable(opened, [find_probe(opened, name) for name in names])
    advice = advise(predicted, facts, margin=margin, commands=commands)
    text, left_out = table_text(advice, facts.default_partition, time.time())
    path = (table or conf_folder() / TABLE_NAME).absolute()
    write_whole(path, text)
    for item in advice:
        for partition, missing in item.missing.items():
            nodes = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            say(f"probe: {item.keys[0][2:]}: no time limit in {partition}: no prediction for {nodes}", err=True)
    for key in left_out:
        say(f"probe: left out, too long for the table: {key[2:][:60]}...", err=True)
    print_outcome(as_json, f"{path}: {len(advice)} probes", table=str(path), probes=len(advice))


@slurm.command(context_settings={"ignore_unknown_options": True})
@click.option("--probe", "probe_name", required=True, help="The probe of what the job runs.")
@click.option("--by-node", is_flag=True, help="Choose among nodes, not features.")
@click.option("--dry-run", is_flag=True, help="Show the choices and submit nothing.")
@_MARGIN
@AS_JSON
@STORE
@click.argument("arguments", metavar="-- SBATCH-ARGUMENT...", nargs=-1, type=click.UNPROCESSED)
def submit(
    probe_name: str,
    by_node: bool,
    dry_run: bool,
    margin: float,
    as_json: bool,
    url: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Submit with sbatch to where the job will end soonest, queue included."""
    from probe.schedulers.usable import usable
    from probe.slurm.facts import refresh, slurm_facts
    from probe.slurm.sbatch import read_call
    from probe.slurm.submitting import choices, with_starts
    from probe.slurm.submitting import submit as submit_choice
    from probe.store.opening import open_store
    from probe.store.reading import find_probe

    wanted = read_call(arguments, sys.stdin)
    facts = slurm_facts()
    with open_store(url, create=False) as opened:
        refresh(opened, facts.nodes)
        (predicted,) = usable(opened, [find_probe(opened, probe_name)])
    found = with_starts(choices(predicted, facts, wanted.asked, by_node=by_node, margin=margin), wanted)
    now = time.time()
    columns = {
        "nodes": lambda c: c["name"],
        "starts in": lambda c: "-" if c["starts"] is None else f"{c['starts'] - now:.0f} s",
        "runs": lambda c: seconds(c["seconds"]),
        "limit": lambda c: f"{c['minutes']} min" if "time" not in wanted.asked else "yours",
        "": lambda c: c["reason"],
    }
    if dry_run:
        print_rows([vars(choice) for choice in found], JSON if as_json else TABLE, "choices", columns, said="")
        return
    best = found[0]
    say(
        f"probe: {best.name}: starts in {(best.starts or now) - now:.0f} s, runs {seconds(best.seconds)} "
        f"(prediction {best.prediction}); {len(found) - 1} other choices end later",
        err=True,
    )
    said = submit_choice(best, predicted.probe.name, wanted)
    print_outcome(as_json, said.rstrip("\n"), choices=[vars(choice) for choice in found], said=said)


@slurm.command()
@click.option("--since", metavar="TIME", help="Jobs from then on, as sacct takes it. [default: today]")
@click.option("--completion-log", is_flag=True, help="Read the job completion log: for sites without accounting.")
@click.option("--by-name", is_flag=True, help="Jobs called like a probe are runs of its program, too.")
@AS_JSON
@STORE
def observe(since: str | None, completion_log: bool, by_name: bool, as_json: bool, url: str | None) -> None:
    """Read how long finished jobs took, from sacct into the store."""
    from probe.slurm.accounting import read_jobs
    from probe.store.opening import open_store

    with open_store(url, create=False) as opened:
        done = read_jobs(opened, since=since, completion_log=completion_log, by_name=by_name)
    skipped = sorted(done.skipped.items())
    said = [f"{opened.name}: {done.stored} run times stored, {done.known} were there already"]
    print_outcome(
        as_json,
        "\n".join([*said, *(f"{count} jobs {reason}" for reason, count in skipped)]),
        store=opened.name,
        stored=done.stored,
        known=done.known,
        skipped=[{"reason": reason, "jobs": count} for reason, count in skipped],
    )


# -- probe run --slurm

_RUN_OPTIONS = (
    click.option("--slurm", is_flag=True, help="Run it on nodes, in Slurm jobs."),
    click.option("--partition", help="With --slurm: on the nodes of this one."),
    click.option("--per-node-type", is_flag=True, help="With --slurm: on one of each kind."),
)


@slurm.command()
@APPLICATION
@click.option("--since", help="Jobs since this time, as sacct reads it. [default: today]")
@click.option(
    "--threads-per-core",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Of what Slurm calls CPUs: 2 where it counts the threads of cores.",
)
@SETTINGS
@AS_JSON
@STORE
def runs(
    application_file: Path,
    since: str | None,
    threads_per_core: int,
    settings: dict[str, float],
    as_json: bool,
    url: str | None,
) -> None:
    """Store finished jobs that are called like a kernel, as runs."""
    from probe.applications.application import read_application
    from probe.slurm.run_accounting import read_runs
    from probe.store.opening import open_store
    from probe.store.runs import store_runs

    read = read_runs(read_application(application_file), settings, since=since, threads_per_core=threads_per_core)
    with open_store(url) as opened:
        stored = store_runs(opened, read.runs)
    known = len(read.runs) - stored
    said = f"{stored} runs stored, {known} were there already"
    said += "".join(f"; {count} jobs {reason}" for reason, count in read.skipped.items())
    skipped = [{"reason": reason, "jobs": count} for reason, count in read.skipped.items()]
    print_outcome(as_json, said, stored=stored, known=known, skipped=skipped)


def slurm_options(command: Command) -> Command:
    """Add the options of `probe run` for Slurm."""
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return command


def check_slurm_options(slurm: bool, partition: str | None, per_node_type: bool, nodes_named: bool) -> None:
    """Raise click.UsageError for options that do not go together."""
    if slurm and nodes_named:
        raise click.UsageError("--slurm chooses the nodes: it does not go with --on, --hosts and --split")
    if (partition or per_node_type) and not slurm:
        raise click.UsageError("--partition and --per-node-type go with --slurm")


def run_as_jobs(
    path: Path, options: Sequence[str], partition: str | None, per_kind: bool, as_json: bool, budget: float = 0.0
) -> None:
    """Run the probe at `path` in Slurm jobs, store the results and print them.

    options: further ones for `probe run` on each node. budget: seconds that the phases may be timed there.
    """
    from probe.inspection.description import show
    from probe.slurm.engine import minutes_for, run_on_slurm, store_run
    from probe.store.opening import open_store

    threads = int(show(path)["threads"])
    with open_store() as opened:
        made_at = time.time()
        run = run_on_slurm(
            path, options, partition=partition, per_kind=per_kind, minutes=minutes_for(budget), threads=threads
        )
        stored = store_run(opened, run, path, made_at)
        if not as_json:
            say(f"{opened.name}: {len(stored.stored)} predictions stored")
    rows = [{"node": node, **result["prediction"]} for node, result in run.results.items()]
    if as_json:
        say_json(run.to_json())
    else:
        columns = {
            "node": lambda r: r["node"],
            "predicted": lambda r: seconds(r["seconds"]),
            "interval": lambda r: f"{seconds(r['low'])} to {seconds(r['high'])}",
        }
        print_rows(sorted(rows, key=lambda r: r["seconds"]), TABLE, "nodes", columns)
    for node, reason in run.failures.items():
        say(f"probe: {node}: {reason}", err=True)
    if not run.results:
        raise SlurmError(f"no node gave a result: {next(iter(run.failures.values()))}")
