# SPDX-License-Identifier: Apache-2.0
"""`probe report`: a page to read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from checkpoint.paths import cache_dir
from probe.cli.parameters import NodeSeconds
from probe.cli.rows import AS_JSON
from probe.progress import display_for
from probe.terminal import say, say_json

if TYPE_CHECKING:
    from probe.report.writing import Report


@click.command()
@click.argument("probe_file", metavar="FILE", type=click.Path(path_type=Path, readable=False))
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
    """Write a page about a probe and the results that `probe run --json` printed; - is standard input.

    Or about a resource profile (.usage), beside other profiles and what `probe emulate --json` printed; or about files
    (.json) of `probe simulate -P --json`.
    """
    # Matplotlib's list of fonts belongs beside our own caches; where it is, is read when the library is imported.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir() / "matplotlib"))
    from probe.report.writing import write_report

    if output is None and figures is None:
        raise click.UsageError("give -o for a page, or --figures for a folder, or both")
    others = {".usage": "resource profiles", ".json": "numbers of nodes"}
    if probe_file.suffix in others:
        if measured or url is not None or scaling is not None:
            raise click.UsageError(
                f"--measured, --store and --scaling are for probes, not for {others[probe_file.suffix]}"
            )
        display = display_for(quiet)
        if probe_file.suffix == ".json":
            from probe.dataflow.nodes_report import write_nodes_report

            shown = write_nodes_report((probe_file, *results), page=output, figures=figures, display=display)
        else:
            from probe.report.usage_report import write_usage_report

            shown = write_usage_report(probe_file, results, page=output, figures=figures, display=display)
        _say_done(shown, (output, figures), "emulation", as_json)
        return
    runs: dict[str, list[float]] = {}
    for node, seconds in measured:
        runs.setdefault(node, []).append(seconds)
    done = write_report(
        probe_file, results, page=output, figures=figures, measured=runs, store=url, scaling=scaling,
        display=display_for(quiet),
    )  # fmt: skip
    _say_done(done, (output, figures), "prediction", as_json)


def _say_done(done: Report, places: Sequence[Path | None], what: str, as_json: bool) -> None:
    from probe.report.wording import several

    if as_json:
        say_json(done.to_json())
        return
    without = f", {done.without} without {'an' if what[0] in 'aeiou' else 'a'} {what}" if done.without else ""
    for place in places:
        if place is not None:
            say(f"{place}: {several(done.nodes, 'node')}{without}")
