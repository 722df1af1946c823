# SPDX-License-Identifier: Apache-2.0
"""`probe scale`: how long an application takes on other numbers of cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from checkpoint.paths import cache_dir
from probe.cli.rows import AS_JSON, FORMAT_VERSION, STORE, percent, print_rows, seconds
from probe.cli.scaling_options import APPLICATION, FORMS, KERNELS, SETTINGS, Numbers, TypeWait
from probe.terminal import say, say_json


@click.group()
def scale() -> None:
    """Predict times on other numbers of cores, from runs in the store."""


@scale.command()
@APPLICATION
@KERNELS
@click.option("--node-type", help="Of this type of nodes alone.")
@FORMS
@AS_JSON
@STORE
def fit(
    application_file: Path, kernels: tuple[str, ...], node_type: str | None, forms: str, as_json: bool, url: str | None
) -> None:
    """Print the curves through the stored runs of each kernel and type of nodes."""
    from probe.applications.application import read_application
    from probe.scaling.asking import fit_application
    from probe.store.opening import open_store

    application = read_application(application_file)
    with open_store(url, create=False) as opened:
        found = fit_application(opened, application, kernels=kernels, node_type=node_type, forms=forms)
    said = found.to_json()
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "application": application.name, **said})
        return
    rows = [{**model, **part} for model in said["models"] for part in model["parts"]]
    columns = {
        "kernel": lambda r: r["kernel"],
        "node type": lambda r: r["node_type"],
        "part": lambda r: r["part"],
        "runs": lambda r: str(r["runs"]),
        "cores": lambda r: ", ".join(map(str, r["sizes"])),
        "seconds for one unit of work": lambda r: r["curve"],
        "left out": lambda r: f"{100 * r['left_out_error']:.1f} %",
        "noise": lambda r: f"{100 * r['noise']:.1f} %",
    }
    print_rows(rows, "table", "models", columns)
    for one in found.refused:
        say(f"none: {one.kernel}: {one.reason}")
    for warning in [*found.warnings, *(f"{m.name}: {w}" for m in found.models for w in m.warnings)]:
        say(f"warning: {warning}")


@scale.command()
@APPLICATION
@KERNELS
@click.option("--node-type", required=True, help="The type of nodes to predict for.")
@click.option("--cores", required=True, type=Numbers(), help="Numbers of cores: 1,2,4 or 16..128, which doubles.")
@SETTINGS
@click.option("--like", metavar="TYPE", help="Join this type's curve with probes, for a type without runs.")
@click.option("--mpi-seconds", type=click.FloatRange(min=0), help="MPI time of each kernel, in place of the curve's.")
@click.option(
    "--network", type=click.Path(path_type=Path, readable=False), help="Its bandwidth by message size, as of osu_bw."
)
@FORMS
@AS_JSON
@STORE
def predict(
    application_file: Path,
    kernels: tuple[str, ...],
    node_type: str,
    cores: tuple[int, ...],
    settings: dict[str, float],
    like: str | None,
    mpi_seconds: float | None,
    network: Path | None,
    forms: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Predict run time and energy, with a 95 % interval."""
    from probe.applications.application import read_application
    from probe.applications.network import read_bandwidths
    from probe.scaling.asking import Question, predict_where_possible
    from probe.store.opening import open_store

    application = read_application(application_file)
    bandwidths = None if network is None else read_bandwidths(network)
    asked = Question(node_type, settings, like, mpi_seconds, forms, kernels, bandwidths)
    with open_store(url, create=False) as opened:
        answer = predict_where_possible(opened, application, asked, cores)
    found, said = answer.predictions, answer.to_json()
    if as_json:
        say_json({"format_version": FORMAT_VERSION, "application": application.name, **said})
        return
    rows = said["predictions"]
    shown: list[dict[str, Any]] = []
    for row in rows:
        shown += [{**kernel, "cores": row["cores"]} for kernel in row["kernels"]]
        if len(row["kernels"]) > 1:
            shown.append({**row, "kernel": "all", "parts": []})
    columns = {
        "cores": lambda r: str(r["cores"]),
        "kernel": lambda r: r["kernel"],
        "predicted": lambda r: seconds(r["seconds"]),
        "interval": lambda r: f"{seconds(r['low'])} to {seconds(r['high'])}",
        "of that": lambda r: ", ".join(f"{p['part']} {seconds(p['seconds'])}" for p in r["parts"]) or "-",
        "energy": lambda r: "-" if r["joules"] is None else f"{r['joules']:.6g} J",
        "by": lambda r: r["energy_source"] or "-",
    }
    print_rows(shown, "table", "predictions", columns)
    for one in answer.refused:
        say(f"none on {one.cores} cores: {one.reason}")
    of_kernels = [(one["kernel"], warning) for row in rows for one in row["kernels"] for warning in one["warnings"]]
    for kernel, warning in dict.fromkeys(of_kernels):
        say(f"warning: {kernel}: {warning}")
    if len(found) > 1 and found[0].cores < found[-1].cores:
        first, last = found[0], found[-1]
        efficiency = first.seconds * first.cores / (last.seconds * last.cores)
        say(f"efficiency from {first.cores} to {last.cores} cores {percent(efficiency).lstrip('+')}")


@scale.command()
@APPLICATION
@click.option("-o", "--output", type=click.Path(path_type=Path, readable=False), help="A page to write.")
@click.option("--figures", type=click.Path(path_type=Path, readable=False), help="Folder for pictures and CSV.")
@click.option("--form", type=click.Choice(("png", "svg")), default="png", show_default=True, help="Of the pictures.")
@click.option("--cores", type=Numbers(), default=(), help="To predict for. [default: measured ones, and twice that]")
@click.option(
    "--wait", "waits", type=TypeWait(), multiple=True, help="TYPE=DURATION in the queue, in place of the runs' median."
)
@SETTINGS
@AS_JSON
@STORE
def plot(
    application_file: Path,
    output: Path | None,
    figures: Path | None,
    form: str,
    cores: tuple[int, ...],
    waits: tuple[tuple[str, float], ...],
    settings: dict[str, float],
    as_json: bool,
    url: str | None,
) -> None:
    """Draw fits, strong scaling, kernels, energy, and wait and run, from the store alone."""
    # Matplotlib's list of fonts belongs beside our own caches; where it is, is read when the library is imported.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_dir() / "matplotlib"))
    from probe.applications.application import read_application
    from probe.report.scaling_report import write_scaling_report
    from probe.store.opening import open_store

    if output is None and figures is None:
        raise click.UsageError("give -o for a page, or --figures for a folder, or both")
    application = read_application(application_file)
    with open_store(url, create=False) as opened:
        done = write_scaling_report(
            opened, application, settings, cores=cores, page=output, figures=figures, form=form, waits=dict(waits)
        )
    if as_json:
        say_json({"format_version": FORMAT_VERSION, **done.to_json()})
        return
    for place in (output, figures):
        if place is not None:
            say(str(place))
    for reason in done.refused:
        say(f"not predicted: {reason}")


@scale.command()
@APPLICATION
@KERNELS
@click.option("--node-type", help="Of this type of nodes alone.")
@click.option(
    "--format", "form", type=click.Choice(("extrap",)), default="extrap", show_default=True, help="What reads it."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    help="Folder to write to. [default: standard output, for one kernel and type]",
)
@STORE
def export(
    application_file: Path,
    kernels: tuple[str, ...],
    node_type: str | None,
    form: str,
    output: Path | None,
    url: str | None,
) -> None:
    """Write the runs behind each curve for other programs: Extra-P's text format."""
    from probe.applications.application import read_application
    from probe.report.figure_files import write_file
    from probe.scaling.asking import fit_application
    from probe.scaling.exporting import extrap_text, file_name
    from probe.store.opening import open_store
    from reducer.output_file import storage_errors

    application = read_application(application_file)
    with open_store(url, create=False) as opened:
        found = fit_application(opened, application, kernels=kernels, node_type=node_type)
    if output is not None:
        with storage_errors("write", output):
            output.mkdir(mode=0o700, parents=True, exist_ok=True)
        for model in found.models:
            text = extrap_text(model).encode()
            say(str(write_file(output / file_name(model), lambda out, text=text: out.write(text))))  # type: ignore[misc]
    elif len(found.models) == 1:
        say(extrap_text(found.models[0]).rstrip())
    else:
        names = ", ".join(model.name for model in found.models)
        raise click.UsageError(f"runs of {names}: give -o for a folder, or --kernel and --node-type for one of them")
    for one in found.refused:
        say(f"none: {one.kernel}: {one.reason}", err=True)
