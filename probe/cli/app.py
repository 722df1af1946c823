# SPDX-License-Identifier: Apache-2.0
"""`probe app`: descriptions of applications."""

from __future__ import annotations

from pathlib import Path

import click

from probe.cli.rows import FORMAT_VERSION
from probe.cli.scaling_options import APPLICATION, SETTINGS
from probe.terminal import say, say_json


@click.group()
def app() -> None:
    """Check descriptions of applications."""


@app.command()
@APPLICATION
@SETTINGS
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md).")
def check(application_file: Path, settings: dict[str, float], as_json: bool) -> None:
    """Read a description and the inputs it names; print kernels, parameters and work."""
    from probe.applications.application import read_application
    from probe.applications.inputs import configuration

    application = read_application(application_file)
    rows = []
    for kernel in application.kernels.values():
        own = {name: value for name, value in settings.items() if name in kernel.parameters}
        found = configuration(application, kernel, own)
        rows.append(
            {
                "name": kernel.name,
                "command": kernel.command,
                "config": found.hash,
                "parameters": [{"name": name, "value": value} for name, value in found.parameters.items()],
                "work": found.work,
                "factor": 1.0 / found.work,
                "probe": kernel.probe,
            }
        )
    unused = sorted(set(settings) - {name for kernel in application.kernels.values() for name in kernel.parameters})
    if unused:
        raise click.UsageError(f"--set {unused[0]}: no kernel has such a parameter")
    graph = str(application.graph)
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "application": application.name, "graph": graph, "kernels": rows})
        return
    say(f"{application.name}: {graph}, nodes {application.nodes}")
    for row in rows:
        assert isinstance(row["parameters"], list)
        values = ", ".join(f"{item['name']} = {item['value']:g}" for item in row["parameters"])
        say(f"{row['name']}: work {row['work']:.9g}, factor {row['factor']:.6g}; {values or 'no parameters'}")
        say(f"  configuration {str(row['config'])[:16]}, command: {row['command'] or '-'}")
