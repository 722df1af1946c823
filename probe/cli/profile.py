# SPDX-License-Identifier: Apache-2.0
"""`probe profile`: what a command uses over time, into a resource profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from probe.cli.parameters import QUIET
from probe.cli.rows import AS_JSON
from probe.cli.usage import print_usage
from probe.progress import display_for
from probe.terminal import say_json


class _Tag(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A tag such as size=big: (name, value)."""

    name = "tag"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, sign, text = str(value).partition("=")
        if not name or not sign:
            self.fail(f"{value!r} is not a tag such as size=big", param, ctx)
        return name, text


@click.command()
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, readable=False), help="The profile to write."
)
@click.option("--tag", "tags", type=_Tag(), multiple=True, help="NAME=VALUE, told apart from other runs. Repeatable.")
@click.option("--rate", type=click.FloatRange(0.01, 20), default=20.0, show_default=True, help="Most samples a second.")
@click.option(
    "--watcher", "watchers", metavar="MODULE:CLASS", multiple=True, help="One more watcher, of your own. Repeatable."
)
@click.option("--no-kernels", is_flag=True, help="Do not calibrate kernels, nor look for their mix (probe emulate).")
@click.option("--trace-calls", is_flag=True, help="Have strace find block sizes and bytes of sockets; this takes time.")
@click.option(
    "--blocks",
    metavar="FILE.profile",
    type=click.Path(path_type=Path, readable=False),
    help="Take instructions and floating-point operations from what `probe trace --tracer valgrind` counted.",
)
@AS_JSON
@QUIET
@click.argument("command", metavar="-- COMMAND [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
def profile(
    output: Path,
    tags: tuple[tuple[str, str], ...],
    rate: float,
    watchers: tuple[str, ...],
    no_kernels: bool,
    trace_calls: bool,
    blocks: Path | None,
    as_json: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and profile the resources that it uses."""
    from probe.emulation.counted import with_counted_blocks
    from probe.emulation.counting.blocks import counted_blocks
    from probe.emulation.metrics import usage_json
    from probe.emulation.sampling import profile_usage
    from probe.emulation.usage import save_usage
    from probe.emulation.watchers import named_watcher
    from reducer.output_file import check_target

    check_target(output)
    counted = None if blocks is None else counted_blocks(blocks, command)
    own = [named_watcher(name) for name in watchers]
    with display_for(quiet).stage("profile"):
        # What the command prints must not be taken for our JSON.
        usage = profile_usage(
            command, dict(tags), rate=rate, watchers=own, stdout=2 if as_json else None, kernels=not no_kernels,
            trace_calls=trace_calls,
        )  # fmt: skip
    if counted is not None:
        usage = with_counted_blocks(usage, counted)
    save_usage(usage, output)
    if as_json:
        say_json(usage_json([(str(output), usage)]))
    else:
        print_usage(str(output), usage)
