# SPDX-License-Identifier: Apache-2.0
"""`probe plan`: which types of nodes and numbers of cores an application should have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from probe.cli.rows import AS_JSON, FORMAT_VERSION, STORE, print_rows, seconds
from probe.cli.scaling_options import APPLICATION, SETTINGS, Numbers, TypeWait
from probe.terminal import say, say_json


@click.command()
@APPLICATION
@click.option("--cores", required=True, type=Numbers(), help="To choose from: 1,2,4 or 16..128, which doubles.")
@click.option(
    "--objective",
    type=click.Choice(("time", "energy", "core-hours")),
    default="time",
    show_default=True,
    help="What is to be least.",
)
@click.option("--node-type", "types", multiple=True, help="To choose from. Repeatable. [default: all with runs]")
@click.option("--like", metavar="TYPE", help="Join this type's curves with probes, for types without runs.")
@click.option("--wait", "waits", type=TypeWait(), multiple=True, help="TYPE=DURATION in the queue, for each kernel.")
@click.option("--pareto", is_flag=True, help="Also list the plans that none other beats in every respect.")
@SETTINGS
@AS_JSON
@STORE
def plan(
    application_file: Path,
    cores: tuple[int, ...],
    objective: str,
    types: tuple[str, ...],
    like: str | None,
    waits: tuple[tuple[str, float], ...],
    pareto: bool,
    settings: dict[str, float],
    as_json: bool,
    url: str | None,
) -> None:
    """Choose a type of nodes and a number of cores for each kernel."""
    from probe.applications.application import read_application
    from probe.scaling.planning import propose
    from probe.store.opening import open_store

    application = read_application(application_file)
    with open_store(url, create=False) as opened:
        found = propose(
            opened, application, cores, settings, objective=objective, types=types, waits=dict(waits), like=like
        )
    said = found.to_json(pareto)
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "application": application.name, "objective": objective, **said})
        return
    columns = {
        "time": lambda r: seconds(r["seconds"]),
        "interval": lambda r: f"{seconds(r['low'])} to {seconds(r['high'])}",
        "energy": lambda r: "-" if r["joules"] is None else f"{r['joules']:.6g} J",
        "by": lambda r: r["energy_source"] or "-",
        "core hours": lambda r: f"{r['core_hours']:.4g}",
        "kernels": lambda r: ", ".join(_shown(choice) for choice in r["choices"]),
    }
    print_rows([said["best"]], "table", "best", columns)
    if pareto:
        say(f"\nnone of {said['plans']} plans beats these in time, energy and core hours:")
        print_rows(said["front"], "table", "front", columns)
    for reason in said["refused"]:
        say(f"left out: {reason}")
    for warning in said["warnings"]:
        say(f"warning: {warning}")


def _shown(choice: dict[str, Any]) -> str:
    places = f" x {choice['places']}" if choice["places"] > 1 else ""
    return f"{choice['kernel']} {choice['cores']}{places} {choice['node_type']}"
