# SPDX-License-Identifier: Apache-2.0
"""`probe report`: a page to read."""

from __future__ import annotations

import os
from pathlib import Path

import click

from checkpoint.paths import cache_dir
from probe.cli.parameters import NodeSeconds
from probe.cli.rows import AS_JSON
from probe.progress import display_for
from probe.terminal import say, say_json


@click.command()
@click.argument("probe_file", metavar="FILE.probe", type=click.Path(path_type=Path, readable=False))
@click.argument("results", metavar="[RESULT.json]...", nargs=-1, type=click.Path(path_type=Path, readable=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, readable=False), help="The page to write.")
@click.option(
    "--figures",
    type=click.Path(path_type=Path, readable=False),
    help="Folder for PNG and CSV of every figure; with or without a page.",
)
@click.option(
    "--measured",
    multiple=True,
    type=NodeSeconds(),
    help="NODE=DURATION: what a full run took on a node. Repeatable.",
)
@click.option("--store", "url", metavar="URL", help="Also take observed run times from this file or database.")
@click.option(
    "--scaling",
    metavar="APPLICATION.toml",
    type=click.Path(path_type=Path, readable=False),
    help="Also draw how this application scales, from the store.",
)
@AS_JSON
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
def report(
    probe_file: Path,
    results: tuple[Path, ...],
    output: Path | None,
    figures: Path | None,
    measured: tuple[tuple[str, float], ...],
    url: str | None,
    scaling: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a page about a probe, and about the results that `probe run --json` printed; - is standard input."""
    # Matplotlib's list of fonts belongs beside our own caches; where it is, is read when the library is imported.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir() / "matplotlib"))
    from probe.report.wording import several
    from probe.report.writing import write_report

    if output is None and figures is None:
        raise click.UsageError("give -o for a page, or --figures for a folder, or both")
    runs: dict[str, list[float]] = {}
    for node, seconds in measured:
        runs.setdefault(node, []).append(seconds)
    done = write_report(
        probe_file, results, page=output, figures=figures, measured=runs, store=url, scaling=scaling,
        display=display_for(quiet),
    )  # fmt: skip
    if as_json:
        say_json(done.to_json())
        return
    without = f", {done.without} without a prediction" if done.without else ""
    for place in (output, figures):
        if place is not None:
            say(f"{place}: {several(done.nodes, 'node')}{without}")
