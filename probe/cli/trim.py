# SPDX-License-Identifier: Apache-2.0
"""`probe trim`: a smaller probe from another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli.figures import percent, size
from probe.cli.parameters import COMPRESS, PROBE_FILE, Size
from probe.cli.rows import AS_JSON
from probe.terminal import say, say_json
from reducer.choices import Compression

if TYPE_CHECKING:
    from probe.inspection.trimming import TrimmedProbe


@click.command()
@PROBE_FILE
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The smaller probe to write."
)
@click.option("--phases", type=click.IntRange(1, 1000), help="Keep this many phases.")
@click.option("--coverage", type=click.FloatRange(0, 1), help="Keep phases with this share of the run's time.")
@click.option("--max-size", type=Size(), help="Keep what fits in this size, such as 20M.")
@COMPRESS
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
    from probe.inspection.trimming import trim as trim_probe

    trimmed = trim_probe(probe_file, output, phases=phases, coverage=coverage, max_size=max_size, compression=compress)
    if as_json:
        say_json(trimmed.to_json())
    else:
        print_trimmed(trimmed)


def print_trimmed(trimmed: TrimmedProbe) -> None:
    """What `probe trim` has made, and what it takes to run it."""
    m = trimmed.manifest
    say(
        f"{trimmed.path}: {len(m.phases)} of {m.trimmed_from} phases, {percent(m.coverage)} of the time covered, "
        f"{size(trimmed.size_bytes)} (before: {size(trimmed.source_bytes)}), expected error "
        f"{percent(trimmed.expected_error, 2)}",
    )
    if trimmed.least_coverage is not None:
        say(
            f"warning: `probe run` predicts from this probe only with --min-coverage {trimmed.least_coverage:g}; "
            "the rest of the time is extrapolated",
        )
