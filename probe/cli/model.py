# SPDX-License-Identifier: Apache-2.0
"""`probe model`: Aspen models checked, priced, asked, and turned into programs and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from probe.cli.model_options import GRID, MACHINE, MODEL, NAMED, PROBES, SETTINGS, SOCKET, flow, machine
from probe.cli.rows import AS_JSON, FORMAT_VERSION, print_outcome, seconds
from probe.terminal import one_line, say, say_json

_MOST_STEPS = 10_000


@click.group()
def model() -> None:
    """Read analytic models in the Aspen language."""


@model.command()
@MODEL
@AS_JSON
def check(model_file: Path, as_json: bool) -> None:
    """Read a model and what it includes; print what it defines and uses."""
    from probe.models.inventory import uses
    from probe.models.reader import read_model

    source = read_model(model_file)
    applications = [
        {
            "name": application.name,
            "parameters": [p.name for p in (*source.parameters, *application.parameters)],
            "kernels": list(application.kernels),
            "resources": [{"name": name, "traits": traits} for name, traits in uses(application).items()],
        }
        for application in source.applications.values()
    ]
    components = [{"kind": c.kind, "name": c.name, "resources": list(c.provided)} for c in source.components.values()]
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "models": applications, "components": components})
        return
    for found in applications:
        say(one_line(f"model {found['name']}: kernels {_listed(found['kernels'])}"))
        say(one_line(f"  parameters: {_listed(found['parameters'])}"))
        for resource in found["resources"]:
            assert isinstance(resource, dict)
            say(one_line(f"  {resource['name']}: {_listed(resource['traits'])}"))
    for part in components:
        say(one_line(f"{part['kind']} {part['name']}: {_listed(part['resources'])}"))


def _listed(names: Any) -> str:
    return ", ".join(names) or "-"


@model.command()
@MODEL
@MACHINE(required=True)
@SOCKET
@SETTINGS
@NAMED
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks that communicate.")
@PROBES
@AS_JSON
def cost(
    model_file: Path, machine_file: Path, socket: str, settings: dict[str, float], named: str, ranks: int,
    probes: tuple[str, ...], node: str, url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Price a model on a machine: seconds, by kernel and by resource, and joules."""
    from probe.models.cost import energy, price
    from probe.models.probed import seconds_of_probes

    on = machine(machine_file, socket)
    asked = flow(model_file, settings, named)
    found = price(asked, on, ranks=ranks, probes=seconds_of_probes(probes, node, url))
    resources = [
        {"name": name, "amount": amount, "seconds": found.busy.get(name)} for name, amount in found.amounts.items()
    ]
    kernels = [{"name": name, "seconds": value} for name, value in found.kernels.items()]
    joules = energy(found, on)
    if as_json:
        say_json(
            {
                "format_version": FORMAT_VERSION,
                "model": asked.application.name,
                "machine": on.name,
                "socket": on.socket,
                "ranks": ranks,
                "seconds": found.seconds,
                "communication_seconds": found.communication,
                "joules": joules,
                "kernels": kernels,
                "resources": resources,
            }
        )
        return
    say(one_line(f"{asked.application.name} on {on.name}, socket {on.socket}: {seconds_text(found.seconds)}"))
    say(f"communication {seconds_text(found.communication)}, energy of a node {joules:g} J")
    for row in kernels:
        say(one_line(f"kernel {row['name']}: {seconds_text(float(row['seconds']))}"))  # type: ignore[arg-type]
    for resource in resources:
        busy = "" if resource["seconds"] is None else f", {seconds_text(float(resource['seconds']))}"
        say(one_line(f"resource {resource['name']}: {resource['amount']:g}{busy}"))


def seconds_text(value: float) -> str:
    """For people: short times keep their digits."""
    return seconds(value) if value == 0 or value >= 1 else f"{value:.4g} s"


@model.command()
@MODEL
@click.argument("resource")
@click.option("--over", metavar="NAME[=LOW..HIGH[:STEP]]", required=True, help="Parameter left open, and its range.")
@SETTINGS
@NAMED
@AS_JSON
def query(model_file: Path, resource: str, over: str, settings: dict[str, float], named: str, as_json: bool) -> None:
    """Give the formula of a resource's amount in one parameter, and its values over a range."""
    from probe.models.expressions import Settings
    from probe.models.formula import total
    from probe.models.reader import read_model
    from probe.models.walk import application_of

    name, _, text = over.partition("=")
    source = read_model(model_file)
    application = application_of(source, Settings(settings), named)
    found = total(application, source.parameters, resource, settings, [name])
    points = [{"value": x, "amount": float(found.subs(name_symbol(found, name), x))} for x in _range(text)]
    if as_json:
        say_json(
            {"format_version": FORMAT_VERSION, "resource": resource, "over": name, "formula": str(found),
             "points": points}
        )  # fmt: skip
        return
    say(one_line(f"{resource} = {found}"))
    for point in points:
        say(f"{name} = {point['value']:g}: {point['amount']:.10g}")


def name_symbol(found: Any, name: str) -> Any:
    """The formula's symbol of that name, or the name where it does not depend on it."""
    return next((symbol for symbol in found.free_symbols if symbol.name == name), name)


def _range(text: str) -> list[float]:
    if not text:
        return []
    bounds, _, step = text.partition(":")
    low, dots, high = bounds.partition("..")
    try:
        first = float(low)
        last = float(high) if dots else first
        by = float(step) if step else 1.0
    except ValueError:
        raise click.BadParameter(f"{text}: LOW..HIGH or LOW..HIGH:STEP is wanted", param_hint="--over") from None
    if not (by > 0 and last >= first and (last - first) / by < _MOST_STEPS):
        raise click.BadParameter(f"{text}: a range upward, of at most {_MOST_STEPS} steps", param_hint="--over")
    return [first + by * i for i in range(int((last - first) / by + 1e-9) + 1)]


@model.command()
@MODEL
@GRID
@MACHINE(required=False)
@SOCKET
@SETTINGS
@NAMED
@PROBES
@click.option(
    "--mode",
    type=click.Choice(("implicit", "explicit")),
    default="implicit",
    show_default=True,
    help="Loops as loops, or every turn written out.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what explicit mode draws.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="C program to write.")
@click.option("--trace", type=click.Path(path_type=Path), help="Folder to make, with a trace for each rank.")
@AS_JSON
def generate(
    model_file: Path, grid: str, machine_file: Path | None, socket: str, settings: dict[str, float], named: str,
    probes: tuple[str, ...], node: str, url: str | None, mode: str, seed: int, output: Path | None,
    trace: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write the MPI program that a model describes, or its time-independent trace."""
    from probe.models.communication import grid_of, size_of
    from probe.models.probed import seconds_of_probes
    from probe.schedulers.usable import write_whole
    from probe.simulation.plan import plan
    from probe.simulation.program import program
    from probe.simulation.trace import write_trace

    if (output is None) == (trace is None):
        raise click.UsageError("one of --output and --trace")
    on = None if machine_file is None else machine(machine_file, socket)
    asked = flow(model_file, settings, named)
    steps = plan(asked, on, explicit=mode == "explicit", seed=seed, probes=seconds_of_probes(probes, node, url))
    ranks = grid_of(grid)
    if trace is not None:
        written = write_trace(steps, ranks, trace).index
    else:
        assert output is not None
        written = output
        write_whole(output, program(steps, ranks, model_file.name))
    print_outcome(as_json, one_line(f"wrote {written}"), written=str(written), ranks=size_of(ranks))
