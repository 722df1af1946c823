# SPDX-License-Identifier: Apache-2.0
"""`probe queue`: when a job would start."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.rows import FORMAT, STORE, TABLE, print_rows, seconds
from probe.cli.scaling_options import SETTINGS, LongDuration
from probe.terminal import say


@click.command()
@click.option("--partition", metavar="NAME", help="Of Slurm. [default: Slurm's]")
@click.option("--cores", required=True, type=click.IntRange(1, 10_000_000), help="That the job asks for.")
@click.option("--time", "limit", type=LongDuration(), help="Time limit of the job, such as 2h.")
@click.option(
    "--application",
    type=click.Path(path_type=Path, readable=False),
    help="Description: its predicted run time, and --overhead, in place of --time.",
)
@click.option("--node-type", help="Of the prediction. [default: the partition]")
@SETTINGS
@click.option(
    "--overhead",
    type=click.FloatRange(0, 10),
    default=0.1,
    show_default=True,
    help="Share of the predicted run time that the limit has more.",
)
@click.option(
    "--probability",
    type=click.FloatRange(0.01, 0.99),
    default=0.8,
    show_default=True,
    help="With which the bound from history holds.",
)
@click.option("--since", default="now-30days", show_default=True, help="History that counts, as sacct reads times.")
@click.option(
    "--usage",
    type=click.FloatRange(0.01, 1),
    default=1.0,
    show_default=True,
    help="Share of their limits that jobs of the queue really run.",
)
@FORMAT
@STORE
def queue(
    partition: str | None,
    cores: int,
    limit: float | None,
    application: Path | None,
    node_type: str | None,
    settings: dict[str, float],
    overhead: float,
    probability: float,
    since: str,
    usage: float,
    form: str,
    url: str | None,
) -> None:
    """Say how long a job would wait, in three ways: Slurm's own answer, history, simulation."""
    from probe.slurm.waits import answers

    if (limit is None) == (application is None):
        raise click.UsageError("give --time, or --application for the predicted run time")
    predicted = None
    if application is not None:
        if not (kind := node_type or partition):
            raise click.UsageError("--application needs --node-type, or --partition, which is taken for the type")
        predicted = _predicted(application, kind, settings, cores, url)
        limit = predicted * (1 + overhead)
    elif node_type or settings:
        raise click.UsageError("--node-type and --set go with --application")
    assert limit is not None
    found = answers(partition, cores, limit, probability, since=since, usage=usage)
    columns = {
        "by": lambda r: r["way"],
        "waits": lambda r: "-" if r["seconds"] is None else seconds(r["seconds"]),
        "from": lambda r: r["basis"] or r["reason"],
    }
    if predicted is not None:
        if form == TABLE:
            say(f"predicted {seconds(predicted)}; a limit of {seconds(limit)}")
        columns["ends after"] = lambda r: "-" if r["seconds"] is None else seconds(r["seconds"] + predicted)
    print_rows([one.to_json() for one in found], form, "answers", columns, limit=limit, predicted=predicted)


def _predicted(path: Path, node_type: str, settings: dict[str, float], cores: int, url: str | None) -> float:
    """Seconds of the whole application on so many cores. Raises Unpredictable, NotInStore, ProbeError."""
    from probe.applications.application import read_application
    from probe.scaling.asking import Question, predict_application
    from probe.store.opening import open_store

    with open_store(url, create=False) as opened:
        (found,) = predict_application(opened, read_application(path), Question(node_type, settings), [cores])
    return found.seconds
