# SPDX-License-Identifier: Apache-2.0
"""`probe queue`: when a job would start."""

from __future__ import annotations

import click

from probe.cli.rows import FORMAT, print_rows, seconds
from probe.cli.scaling_options import LongDuration


@click.command()
@click.option("--partition", metavar="NAME", help="Of Slurm. [default: Slurm's]")
@click.option("--cores", required=True, type=click.IntRange(1, 10_000_000), help="That the job asks for.")
@click.option("--time", "limit", required=True, type=LongDuration(), help="Time limit of the job, such as 2h.")
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
def queue(
    partition: str | None, cores: int, limit: float, probability: float, since: str, usage: float, form: str
) -> None:
    """Say how long a job would wait, in three ways: Slurm's own answer, history, simulation."""
    from probe.slurm.waits import answers

    found = answers(partition, cores, limit, probability, since=since, usage=usage)
    columns = {
        "by": lambda r: r["way"],
        "waits": lambda r: "-" if r["seconds"] is None else seconds(r["seconds"]),
        "from": lambda r: r["basis"] or r["reason"],
    }
    print_rows([one.to_json() for one in found], form, "answers", columns)
