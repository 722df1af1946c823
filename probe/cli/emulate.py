# SPDX-License-Identifier: Apache-2.0
"""`probe emulate`: use here what a profile says was used elsewhere, or what an application of blocks uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.errors import NodesFailed
from probe.cli.figures import percent, seconds, size
from probe.cli.model_options import PROBES
from probe.cli.node_options import EmulationChoice, emulation_options
from probe.cli.nodes import DESCRIPTION, emulate_nodes, misused
from probe.cli.parameters import QUIET, Size
from probe.cli.rows import AS_JSON
from probe.progress import display_for
from probe.terminal import console, one_line, say, say_json

if TYPE_CHECKING:
    from probe.emulation.elsewhere.remote import EmulatedNode
    from probe.emulation.plan import EmulateOptions
    from probe.emulation.running import EmulationResult


class _Scales(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Factors such as compute=2,write=0.5, by resource."""

    name = "scales"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        if isinstance(value, dict):
            return value
        found = {}
        for part in str(value).split(","):
            name, _, factor = part.partition("=")
            try:
                found[name.strip()] = float(factor)
            except ValueError:
                self.fail(f"{part!r} is not a resource and a factor such as compute=2", param, ctx)
        return found


class _Loads(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Loads such as cpu=1,memory=2G."""

    name = "loads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        parts = [part.partition("=") for part in str(value).split(",")]
        return {name.strip(): Size().convert(amount, param, ctx) for name, _, amount in parts}


@click.command()
@click.argument("profile", metavar="FILE.usage|DATA.toml", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--kernel", default="matrix", show_default=True, help="What computes: a name of `probe kernels`, or auto."
)
@click.option(
    "--own",
    "own_kernel",
    type=click.Path(path_type=Path),
    metavar="FILE.c|FILE.py",
    help="What computes: a function `kernel` of your own, in C, assembly or Python.",
)
@click.option(
    "--efficiency", type=click.FloatRange(0, 1), help="Share of the computing that is the kernel's; the rest stalls."
)
@click.option(
    "--equal",
    type=click.Choice(("work", "seconds")),
    default="work",
    show_default=True,
    help="What is as in the profile: work (iterations of the kernel), or CPU seconds.",
)
@click.option("--scale", type=_Scales(), help="Factors for compute, memory, read and write, as compute=2.")
@click.option("--threads", type=click.IntRange(1, 1024), help="That compute. [default: processors the command used]")
@click.option("--read-block", type=Size(), default=65536, show_default=True, help="Bytes of one call that reads.")
@click.option("--write-block", type=Size(), default=65536, show_default=True, help="Bytes of one call that writes.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=True,
    help="Where files are made, without names; nothing is written elsewhere.",
)
@click.option("--files", type=click.IntRange(1, 1024), default=1, show_default=True, help="Written by turns.")
@click.option(
    "--send-to", metavar="HOST:PORT", help="Send what the command sent to this server, which takes all bytes."
)
@click.option(
    "--receive-from", metavar="HOST:PORT", help="Receive as much as the command did, from a server that sends on."
)
@click.option("--load", type=_Loads(), help="Load the node meanwhile, by stress-ng, as cpu=1,disk=1,memory=2G.")
@click.option("--keep-waits", is_flag=True, help="Sleep where the command neither computed nor waited for a processor.")
@emulation_options
@click.option(
    "--ranks", type=click.IntRange(1, 4096), help="Processes that share the computing; of DATA.toml: MPI ranks."
)
@click.option(
    "--disks", type=click.IntRange(1, 64), default=1, show_default=True, help="Of DATA.toml: files of a rank."
)
@click.option(
    "--machine", type=click.Path(path_type=Path), help="Of DATA.toml: machine file to write, as measured here."
)
@click.option("--limit", type=float, default=3600.0, show_default=True, help="Of DATA.toml: seconds it may take.")
@PROBES
@AS_JSON
@QUIET
def emulate(
    profile: Path, as_json: bool, quiet: bool, scale: dict[str, float] | None, load: dict[str, int] | None,
    ranks: int | None, disks: int, machine: Path | None, limit: float, probes: tuple[str, ...], node: str,
    url: str | None, **given: Any,
) -> None:  # fmt: skip
    """Use here, or on other nodes, what a profile says a command used, or an application of blocks uses; time that."""
    if refused := misused(profile):
        raise click.UsageError(refused)
    if profile.suffix == DESCRIPTION:
        emulate_nodes(
            profile, ranks, disks, given["folder"], machine, probes=probes, node=node, url=url, limit=limit,
            quiet=quiet, as_json=as_json,
        )  # fmt: skip
        return
    from probe.emulation.plan import EmulateOptions
    from probe.emulation.running import emulate as emulate_profile

    nodes = EmulationChoice(**{field.name: given.pop(field.name) for field in fields(EmulationChoice)})
    options = EmulateOptions(scale=scale or {}, load=load or {}, ranks=ranks or 1, **given)
    if nodes.named:
        _emulate_there(profile, nodes, options, as_json, quiet)
        return
    result = emulate_profile(profile, options, display=display_for(quiet))
    if as_json:
        say_json(result.to_json())
    else:
        print_emulation(result)


def _emulate_there(profile: Path, nodes: EmulationChoice, options: EmulateOptions, as_json: bool, quiet: bool) -> None:
    """On all nodes; then raises where one has no emulation: its own error where there was only one node."""
    from probe.cli.node_progress import watching
    from probe.emulation.elsewhere.remote import emulate_on, emulated_json

    with watching(quiet) as watcher:
        found = emulate_on(
            profile, nodes.addresses(), options, ssh=nodes.ssh(), orders=nodes.orders(), jobs=nodes.jobs,
            watcher=watcher,
        )  # fmt: skip
    if as_json:
        say_json(emulated_json(str(profile), found))
    else:
        _print_nodes(found)
    failed = [one for one in found if one.error is not None]
    if failed and len(found) == 1:
        assert failed[0].error is not None
        raise failed[0].error
    if failed:
        names = ", ".join(one.name for one in failed)
        raise NodesFailed(f"{len(failed)} of {len(found)} nodes have no emulation: {names}")


def _print_nodes(found: Sequence[EmulatedNode]) -> None:
    """A row for each node, the fastest first; then reasons, notes and warnings."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("node", "emulated", "CPU", "threads", "emulator", "in all"):
        table.add_column(head, justify="left" if head in ("node", "emulator") else "right", no_wrap=True)
    for one in sorted(found, key=lambda one: one.result.seconds if one.result else float("inf")):
        name = Text(one_line(one.name))
        if one.result is None:
            table.add_row(name, "none", "-", "-", "-", f"{one.seconds:.1f} s")
            continue
        outcome = one.result.outcome
        table.add_row(
            name, seconds(one.result.seconds), seconds(outcome.user + outcome.kernel), str(one.result.plan.threads),
            "built there" if one.built else "sent", f"{one.seconds:.1f} s",
        )  # fmt: skip
    console().print(table)
    for one in found:
        for note in one.notes:
            say(one_line(f"{one.name}: note: {note}"))
        if one.error is not None and len(found) > 1:
            say(one_line(f"no emulation: {one.error}"))
        for warning in one.result.warnings if one.result else ():
            say(one_line(f"{one.name}: warning: {warning}"))
    say("emulated times have no interval: these are no predictions")


def print_emulation(result: EmulationResult) -> None:
    """The totals beside the profile's, for people."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("figure", "profiled", "emulated", "difference"):
        table.add_column(head, justify="left" if head == "figure" else "right")
    for row in result.totals:
        shown = seconds if row["unit"] == "s" else _bytes
        wanted = row["wanted"]
        difference = percent(row["emulated"] / wanted - 1) if wanted else "-"
        table.add_row(row["name"], shown(row["profiled"]), shown(row["emulated"]), difference)
    console().print(table)
    ranks = f"{result.plan.ranks} ranks of " * (result.plan.ranks > 1)
    said = f"emulated: {seconds(result.seconds)}, with {ranks}{result.plan.threads} threads"
    say(f"{said}; no interval: this is no prediction")
    for warning in result.warnings:
        say(one_line(f"warning: {warning}"))


def _bytes(value: float | None) -> str:
    return "-" if value is None else size(round(value))
