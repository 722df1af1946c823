# SPDX-License-Identifier: Apache-2.0
"""`probe trace`: stage 1 alone, a profile out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli.parameters import INTERVAL, ISA, PROGRAM, QUIET, SCRUB, STDIN, TRACER, Length
from probe.cli.rows import AS_JSON
from probe.formats.choices import SECONDS
from probe.pipeline.runs.environment import scrubbed
from probe.progress import display_for
from probe.terminal import say, say_json

if TYPE_CHECKING:
    from probe.formats.profile import Profile

TRACE_VERSION = 1
"""Of the JSON of `probe trace`."""


@click.command()
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The profile to write."
)
@INTERVAL
@TRACER
@ISA
@STDIN
@SCRUB
@AS_JSON
@QUIET
@PROGRAM
def trace(
    output: Path,
    interval: Length | None,
    tracer: str,
    isa: str,
    stdin: str,
    scrub_env: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Trace PROGRAM into a profile (stage 1 alone)."""
    from probe.pipeline.trace import trace as trace_program

    length = interval.for_tracer(tracer) if interval else None
    profile = trace_program(
        program,
        output,
        tracer=tracer,
        interval=length,
        isa=isa,
        stdin=stdin,
        env=scrubbed(os.environ, scrub_env),
        display=display_for(quiet),
    )
    if as_json:
        say_json(trace_json(profile, output))
        return
    counted = (
        f"{profile.removed_sites} of {profile.installed_sites} sites removed"
        if profile.unit == SECONDS
        else f"{float(profile.instructions().sum()):.0f} instructions"
    )
    say(
        f"{output}: {profile.intervals} intervals, {len(profile.blocks.site)} blocks, "
        f"{float(profile.seconds.sum()):.3f} s, {counted}"
    )


def trace_json(profile: Profile, path: Path) -> dict[str, Any]:
    """What `probe trace --json` prints of the profile written to `path` (docs/json.md)."""
    return {
        "format_version": TRACE_VERSION,
        "profile": str(path),
        "tracer": profile.tracer,
        "unit": profile.unit,
        "interval": profile.interval,
        "intervals": profile.intervals,
        "blocks": len(profile.blocks.site),
        "seconds": float(profile.seconds.sum()),
        "instructions": float(profile.instructions().sum()),
        "sites": {"installed": profile.installed_sites, "removed": profile.removed_sites},
    }
