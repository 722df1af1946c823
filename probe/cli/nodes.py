# SPDX-License-Identifier: Apache-2.0
"""The part of `probe simulate` that puts data-intensive applications on numbers of nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.paths import cache_dir
from probe.cli.figures import seconds, size
from probe.cli.rows import FORMAT_VERSION, print_rows
from probe.progress import display_for
from probe.terminal import one_line, say, say_json

if TYPE_CHECKING:
    from probe.dataflow.prediction import DataPrediction

DESCRIPTION = ".toml"
"""Ending of an application's description."""


def simulate_nodes(
    description: Path, machine: Path | None, nodes: Sequence[int], mode: str, network: str, *, probes: Sequence[str],
    node: str, url: str | None, limit: float, quiet: bool, picture: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate a description on each number of nodes, and print the table."""
    if machine is None:
        raise click.UsageError("Missing option '--machine': an application of blocks runs on a machine with disks")
    if not nodes:
        raise click.UsageError("Missing option '-P': numbers of nodes, such as 256..8192")
    from probe.dataflow.application import read_data_application
    from probe.dataflow.machine import read_disk_machine
    from probe.dataflow.prediction import block_time, predict_nodes
    from probe.models.probed import seconds_of_probes
    from probe.simulation.networks import network_of

    application, described = read_data_application(description), read_disk_machine(machine)
    given = seconds_of_probes([text for text in probes if "=" in text], node, url)
    time = block_time(application, given, node, url)
    found = predict_nodes(
        application, described, nodes, time=time, mode=mode, network=network_of(network) if network else None,
        limit=limit, display=display_for(quiet),
    )  # fmt: skip
    written = [_drawn(picture, found)] if picture is not None else []
    if as_json:
        said = {"format_version": FORMAT_VERSION, **found.to_json(), "written": [str(path) for path in written]}
        say_json(said)
        return
    _print(found)
    for path in written:
        say(one_line(f"wrote {path}"))


_OF_RANKS = ("disks", "machine", "limit", "probes", "node", "url")
_OF_BOTH = ("profile", "ranks", "folder", "as_json", "quiet")


def misused(what: Path) -> str:
    """What is wrong with the options of `probe emulate` for this file; empty where nothing is."""
    context = click.get_current_context()
    given = [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    blocks = what.suffix == DESCRIPTION
    for parameter in given:
        if parameter.name not in _OF_BOTH and (parameter.name in _OF_RANKS) != blocks:
            kind = f"not of an application of blocks ({DESCRIPTION})" if blocks else "of an application of blocks alone"
            return f"{parameter.opts[0]} is {kind}"
    return ""


def emulate_nodes(
    description: Path, ranks: int | None, disks: int, folder: Path, machine: Path | None, *, probes: Sequence[str],
    node: str, url: str | None, limit: float, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a description for real on ranks of MPI, and print what that took."""
    if ranks is None:
        raise click.UsageError("Missing option '--ranks': how many ranks of MPI are to run the application")
    from probe.dataflow.application import read_data_application
    from probe.dataflow.emulating import emulate_data
    from probe.dataflow.prediction import block_time
    from probe.models.probed import seconds_of_probes

    application = read_data_application(description)
    time = block_time(application, seconds_of_probes([text for text in probes if "=" in text], node, url), node, url)
    shown = display_for(quiet)
    found = emulate_data(application, ranks, folder=folder, time=time, disks=disks, limit=limit, display=shown)
    if machine is not None:
        from probe.schedulers.usable import write_whole

        write_whole(machine, found.machine_text("here"))
    if as_json:
        say_json({"format_version": FORMAT_VERSION, **found.to_json()})
        return
    say(
        one_line(
            f"{application.name} ({application.family}) on {ranks} ranks: {seconds(found.seconds)}, computing "
            f"{seconds(found.computing)}; {found.blocks} blocks read, {found.messages} messages"
        )
    )
    alone = found.measured
    say(f"alone: a read {seconds(alone.read_seconds)}, a message {seconds(alone.message_seconds)}")
    if machine is not None:
        say(one_line(f"wrote {machine}"))


def _drawn(path: Path, found: DataPrediction) -> Path:
    # Matplotlib's list of fonts belongs beside our own caches; where it is, is read when it is imported.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir() / "matplotlib"))
    from functools import partial

    from probe.dataflow.nodes_figure import drawn_nodes, nodes_figure
    from probe.report.figure_files import as_png, as_svg, write_file

    drawing = nodes_figure(drawn_nodes(found.to_json()))
    return write_file(path.absolute(), partial(as_svg if path.suffix == ".svg" else as_png, drawing))


def _print(found: DataPrediction) -> None:
    time = found.block_time
    say(
        one_line(
            f"{found.application.name} ({found.application.family}) on {found.machine.name}, {found.mode} simulation; "
            f"a block takes {time.seconds:.4g} s ({time.source})"
        )
    )
    rows: list[dict[str, Any]] = [row.to_json() for row in found.rows]
    columns = {
        "nodes": lambda r: str(r["nodes"]),
        "blocks": lambda r: str(r["blocks"]),
        "messages": lambda r: str(r["messages"]),
        "predicted": lambda r: seconds(r["seconds"]),
        "interval": lambda r: "-" if r["low"] == r["high"] else f"{seconds(r['low'])} to {seconds(r['high'])}",
        "disk": lambda r: _share(r["busy"]["disk"]),
        "bus": lambda r: _share(r["busy"]["bus"]),
        "network": lambda r: _share(max(r["busy"]["sending"], r["busy"]["receiving"])),
        "processor": lambda r: _share(r["busy"]["processor"]),
        "busiest": lambda r: _share(r["busy"]["busiest_processor"]),
        "cost": lambda r: seconds(r["cost_seconds"]),
        "memory": lambda r: size(r["memory_bytes"]),
    }
    print_rows(rows, "table", "rows", columns)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
