# SPDX-License-Identifier: Apache-2.0
"""Commands of `probe store` for runs of parallel kernels, and for stores of the version before."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.rows import AS_JSON, FORMAT, JSON, STORE, print_outcome, print_rows, seconds
from probe.cli.scaling_options import SETTINGS


@click.command()
@click.option("--app", help="Of this application alone.")
@click.option("--kernel", help="Of this kernel alone.")
@click.option("--node-type", help="On this type of nodes alone.")
@FORMAT
@STORE
def runs(app: str | None, kernel: str | None, node_type: str | None, form: str, url: str | None) -> None:
    """List runs of parallel kernels, the oldest first."""
    from probe.store.opening import open_store
    from probe.store.records import iso
    from probe.store.runs import stored_runs

    with open_store(url, create=False) as opened:
        found = stored_runs(opened, app=app, kernel=kernel, node_type=node_type)
    columns = {
        "ended": lambda r: iso(r["ended_at"]),
        "kernel": lambda r: f"{r['app']}.{r['kernel']}",
        "node type": lambda r: r["node_type"],
        "cores": lambda r: str(r["cores"]),
        "ranks x threads": lambda r: f"{r['ranks']} x {r['threads']}",
        "work": lambda r: f"{r['work']:.4g}",
        "took": lambda r: seconds(r["runtime"]),
        "computing": lambda r: seconds(r["computing"]),
        "MPI": lambda r: seconds(r["mpi"]),
        "wait": lambda r: seconds(r["wait"]),
        "energy": lambda r: "-" if r["energy"] is None else f"{r['energy']:.4g} J, {r['energy_source']}",
    }
    # JSON is what `probe store import-runs` reads: numbers as they are stored.
    print_rows([run.to_json() for run in found], form, "runs", {} if form == JSON else columns)


@click.command(name="import-runs")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False))
@click.option(
    "--from",
    "kind",
    type=click.Choice(("json", "reframe")),
    default="json",
    show_default=True,
    help="JSON of `probe store runs`, or performance logs of ReFrame.",
)
@click.option("--application", type=click.Path(path_type=Path, readable=False), help="Description; for ReFrame.")
@click.option("--kernel", help="For ReFrame: the kernel that the logged test runs.")
@click.option("--time", "time_name", metavar="NAME", help="For ReFrame: the performance variable that is the run time.")
@click.option("--mpi", "mpi_name", metavar="NAME", help="For ReFrame: the variable that is the MPI time.")
@SETTINGS
@AS_JSON
@STORE
def import_runs(
    files: tuple[Path, ...],
    kind: str,
    application: Path | None,
    kernel: str | None,
    time_name: str | None,
    mpi_name: str | None,
    settings: dict[str, float],
    as_json: bool,
    url: str | None,
) -> None:
    """Store runs of parallel kernels; those that are there already are left alone."""
    from probe.scaling.importing import Origin, runs_of_json, runs_of_reframe
    from probe.store.opening import open_store
    from probe.store.runs import store_runs

    if kind == "reframe":
        if application is None or kernel is None or time_name is None:
            raise click.UsageError("--from reframe needs --application, --kernel and --time")
        origin = Origin.of(application, kernel, settings)
        read = [runs_of_reframe(file, origin, time_name, mpi_name) for file in files]
    else:
        read = [(runs_of_json(file), {}) for file in files]
    found = [run for some, _ in read for run in some]
    skipped: dict[str, int] = {}
    for _, reasons in read:
        for reason, count in reasons.items():
            skipped[reason] = skipped.get(reason, 0) + count
    with open_store(url) as opened:
        stored = store_runs(opened, found)
    said = f"{stored} runs stored, {len(found) - stored} were there already"
    said += "".join(f"; {count} lines left out: {reason}" for reason, count in skipped.items())
    left_out = [{"reason": reason, "count": count} for reason, count in skipped.items()]
    print_outcome(as_json, said, stored=stored, known=len(found) - stored, left_out=left_out)


@click.command()
@AS_JSON
@STORE
def upgrade(as_json: bool, url: str | None) -> None:
    """Bring a store of the version before to this one; nothing in it is lost."""
    from probe.store.opening import upgrade_store

    before, after = upgrade_store(url)
    said = f"version {before} is version {after} now" if before != after else f"version {after} already"
    print_outcome(as_json, said, before=before, after=after)
