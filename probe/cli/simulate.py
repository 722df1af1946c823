# SPDX-License-Identifier: Apache-2.0
"""`probe simulate`: a model, a trace, rounds of pings or a data-intensive application on what nobody owns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.paths import cache_dir
from probe.cli.model import seconds_text
from probe.cli.model_options import GRID, MACHINE, NAMED, PROBES, SETTINGS, SOCKET, flow, machine
from probe.cli.nodes import DESCRIPTION, simulate_nodes
from probe.cli.parameters import QUIET
from probe.cli.rows import AS_JSON, FORMAT_VERSION
from probe.cli.scaling_options import Numbers
from probe.terminal import one_line, say, say_json

if TYPE_CHECKING:
    from probe.simulation.configured import Configured
    from probe.simulation.outcome import On, Outcome

_DIRECT, _TRACE = ".conf", ".txt"
"""Endings of a file of direct mode and of a trace's index; anything else is a model."""

MODES = ("loose", "tight", "flow")
_OF_NODES = (
    "what", "machine_file", "probes", "node", "url", "limit", "picture", "quiet", "as_json", "nodes", "mode", "network",
)  # fmt: skip
"""Options that an application of blocks has."""

_BANDWIDTH, _LATENCY, _PACKET = 2e9, 1e-6, 512


@dataclass(frozen=True)
class Options:
    """What was asked for, as click gives it."""

    what: Path
    network: str
    grid: str
    machine_file: Path | None
    socket: str
    settings: dict[str, float]
    named: str
    probes: tuple[str, ...]
    node: str
    url: str | None
    bandwidth: float
    latency: float
    packet: int
    rounds: int | None
    traffic: str
    requests: int
    payload: int
    seed: int
    limit: float
    routes_only: bool
    picture: Path | None
    export: str | None
    output: Path | None
    quiet: bool
    as_json: bool
    nodes: tuple[int, ...]
    mode: str

    def seconds_of_probes(self) -> Mapping[str, float]:
        from probe.models.probed import seconds_of_probes

        return seconds_of_probes(self.probes, self.node, self.url)


@click.command()
@click.argument("what", metavar="MODEL.aspen|TRACE|ROUNDS.conf|DATA.toml", type=click.Path(path_type=Path))
@click.option("--network", default="", metavar="NAME", help="torus:4x4x4, fattree:4,3, dragonfly:p=2, slimfly:q=5 ...")
@GRID
@MACHINE(required=False)
@SOCKET
@SETTINGS
@NAMED
@PROBES
@click.option("--bandwidth", type=float, default=_BANDWIDTH, show_default=True, help="Of a link, bytes a second.")
@click.option("--latency", type=float, default=_LATENCY, show_default=True, help="Of a link, seconds.")
@click.option("--packet", type=click.IntRange(1), default=_PACKET, show_default=True, help="Bytes of a packet.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Direct mode: rounds of pings and the model's computing.")
@click.option(
    "--traffic", type=click.Choice(("nearest", "random")), default="nearest", show_default=True,
    help="Whom each node sends its pings to.",
)  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=128, show_default=True, help="Pings of a node in a round.")
@click.option("--payload", type=click.IntRange(0), default=1024, show_default=True, help="Bytes of a ping.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of random traffic.")
@click.option("--limit", type=float, default=3600.0, show_default=True, help="Seconds that simulating may take.")
@click.option("--routes-only", is_flag=True, help="Sum messages and hops; simulate no time.")
@click.option("--picture", type=click.Path(path_type=Path), help="Picture of the links' load to write: .png or .svg.")
@click.option("--export", type=click.Choice(("codes",)), help="Write the network for another simulator, with -o.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File that --export writes.")
@click.option(
    "-P", "--nodes", type=Numbers("nodes"), default=(), help="Of DATA.toml: 15,30 or 256..8192, which doubles."
)
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], show_default=True, help="Of DATA.toml: engine.")
@QUIET
@AS_JSON
def simulate(**given: Any) -> None:
    """Put a model, a trace or rounds of pings on a network, or a data-intensive application on many nodes."""
    options = Options(**given)
    if options.what.suffix == DESCRIPTION:
        _simulate_nodes(options)
        return
    _refuse_misuse(options)
    configured = _configured(options)
    on = _on(options, configured)
    found = _simulated(options, configured, on)
    written = _written(options, on, found)
    notes = [] if configured is None else list(configured.notes)
    if options.export:
        from probe.simulation.codes import UNTESTED

        notes.append(f"{options.output}: {UNTESTED}")
    if options.as_json:
        files = {"written": [str(path) for path in written], "notes": notes}
        say_json({"format_version": FORMAT_VERSION, **found.to_json(on.network.name), **files})
        return
    if configured is not None and configured.debug:
        _print_configuration(configured, on)
    _print(found, on)
    for path in written:
        say(one_line(f"wrote {path}"))
    for note in notes:
        say(one_line(f"note: {note}"))


def _simulate_nodes(options: Options) -> None:
    alone = [name for name in vars(options) if _given(name) and name not in _OF_NODES]
    if alone:
        name = {"settings": "set", "named": "model"}.get(alone[0], alone[0].replace("_", "-"))
        raise click.UsageError(f"--{name} is not of an application of blocks ({DESCRIPTION})")
    if options.network and options.mode != "flow":
        raise click.UsageError("--network is of the flow engine: give --mode flow, or leave it out")
    _refuse_picture(options)
    simulate_nodes(
        options.what, options.machine_file, options.nodes, options.mode, options.network, probes=options.probes,
        node=options.node, url=options.url, limit=options.limit, quiet=options.quiet, picture=options.picture,
        as_json=options.as_json,
    )  # fmt: skip


def _given(name: str) -> bool:
    """Whether an option was on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _refuse_misuse(options: Options) -> None:
    if (options.export is None) != (options.output is None):
        raise click.UsageError("--export and --output are given together")
    _refuse_picture(options)
    if options.nodes or _given("mode"):
        raise click.UsageError(f"-P and --mode are of an application of blocks, a file that ends with {DESCRIPTION}")
    direct = options.rounds is not None
    alone = [name for name in ("traffic", "requests", "payload", "seed") if _given(name)]
    if alone and not direct and options.what.suffix != _DIRECT:
        raise click.UsageError(f"--{alone[0]} is of direct mode, which --rounds or a {_DIRECT} file begins")
    if not options.network and options.what.suffix != _DIRECT:
        raise click.UsageError("Missing option '--network'.")
    if direct and (options.what.suffix in (_DIRECT, _TRACE) or options.what.is_dir()):
        raise click.UsageError("--rounds needs a model: a file of rounds has its own number, a trace has none")


def _refuse_picture(options: Options) -> None:
    if options.picture is not None and options.picture.suffix not in (".png", ".svg"):
        raise click.BadParameter(f"{options.picture}: .png or .svg is wanted", param_hint="--picture")


def _configured(options: Options) -> Configured | None:
    """The files of direct mode, with what the command line says in their place."""
    if options.what.suffix != _DIRECT:
        return None
    from probe.simulation.configured import read_configured
    from probe.simulation.direct import Pings

    found = read_configured(options.what)
    said = found.pings
    return replace(
        found,
        machine=options.machine_file or found.machine,
        pings=Pings(
            options.traffic if _given("traffic") else said.pattern,
            options.requests if _given("requests") else said.requests,
            options.payload if _given("payload") else said.payload,
            options.seed,
        ),
    )


def _on(options: Options, configured: Configured | None) -> On:
    from probe.progress import display_for
    from probe.simulation.networks import network_of
    from probe.simulation.outcome import On
    from probe.simulation.platform import Links

    bandwidth, latency = options.bandwidth, options.latency
    if configured is not None and not options.network:
        bandwidth = bandwidth if _given("bandwidth") else configured.links.bandwidth
        latency = latency if _given("latency") else configured.links.latency
    network = network_of(options.network) if options.network or configured is None else configured.network
    quiet = options.quiet or (configured is not None and configured.debug < 2)
    return On(
        network, Links(bandwidth, latency), options.packet, options.limit, options.routes_only, display_for(quiet)
    )


def _simulated(options: Options, configured: Configured | None, on: On) -> Outcome:
    from probe.models.communication import grid_of
    from probe.simulation.direct import Pings
    from probe.simulation.outcome import of_model, of_rounds, of_trace

    what = options.what
    if configured is not None:
        rounds = [
            (flow(one.model, options.settings, options.named), machine(configured.machine, one.socket))
            for one in configured.rounds
        ]
        return of_rounds(rounds, configured.pings, on, options.seconds_of_probes())
    if what.suffix == _TRACE or what.is_dir():
        return of_trace(what, on)
    asked = flow(what, options.settings, options.named)
    if options.rounds is not None:
        sockets = options.socket.split(",")
        turns = [sockets[number % len(sockets)] for number in range(options.rounds)]
        machines = {name: machine(options.machine_file, name) for name in sockets} if options.machine_file else {}
        pings = Pings(options.traffic, options.requests, options.payload, options.seed)
        return of_rounds([(asked, machines.get(name)) for name in turns], pings, on, options.seconds_of_probes())
    computing = None if options.machine_file is None else machine(options.machine_file, options.socket)
    return of_model(asked, grid_of(options.grid), computing, on, options.seconds_of_probes())


def _written(options: Options, on: On, found: Outcome) -> list[Path]:
    """Picture and export, as far as they were asked for."""
    written = []
    if options.picture is not None:
        # Matplotlib's list of fonts belongs beside our own caches; where it is, is read when it is imported.
        os.environ.setdefault("MPLCONFIGDIR", str(cache_dir() / "matplotlib"))
        written.append(_drawn(options.picture, found, on))
    if options.output is not None:
        from probe.schedulers.usable import write_whole
        from probe.simulation.codes import codes_configuration

        write_whole(options.output, codes_configuration(on.network, on.links, packet=on.packet))
        written.append(options.output)
    return written


def _drawn(path: Path, found: Outcome, on: On) -> Path:
    from checkpoint.errors import ModelInvalid
    from probe.report.figure_files import as_png, as_svg, write_file
    from probe.simulation.load_figure import load_figure

    drawing = load_figure(found.traffic, on.network.name)
    if drawing.figure is None:
        raise ModelInvalid(f"{path}: nothing to draw: {drawing.caption}")
    fill: Callable[..., Any] = as_svg if path.suffix == ".svg" else as_png
    return write_file(path.absolute(), partial(fill, drawing))


def _print_configuration(configured: Configured, on: On) -> None:
    pings = configured.pings
    say(one_line(f"machine {configured.machine}"))
    say(f"links of {on.links.bandwidth:g} bytes a second and {on.links.latency:g} s")
    say(f"{pings.requests} pings of {pings.payload} bytes, {pings.pattern} traffic")
    for number, one in enumerate(configured.rounds):
        say(one_line(f"round {number}: {one.model}, socket {one.socket or 'the first'}"))


def _print(found: Outcome, on: On) -> None:
    said = found.traffic
    say(one_line(f"{found.name}: {found.ranks} ranks on {on.network.name}, {on.network.nodes} nodes"))
    say(
        f"{said.messages} messages, {said.bytes} bytes, {said.packets} packets of {on.packet}; hops "
        f"{said.hops_per_packet:.4f} per packet, {said.hops_per_byte:.4f} per byte"
    )
    say(f"collectives {said.collectives.total()}; busiest link {max(said.loads.values(), default=0)} bytes")
    for number, one in enumerate(found.rounds):
        network = "" if one.network is None else f"network {seconds_text(one.network)}, "
        on_socket = f" on {one.socket}" if one.socket else ""
        say(
            one_line(
                f"round {number}: {network}without contention {seconds_text(one.uncontended)}, computing"
                f"{on_socket} {seconds_text(one.computing)}"
            )
        )
    if found.seconds is not None and found.simulated is not None:
        say(
            f"time {seconds_text(found.seconds)}, simulated in {found.simulated.wall:.1f} s "
            f"({found.simulated.events_per_second:.0f} events a second)"
        )
