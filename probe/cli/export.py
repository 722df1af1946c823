# SPDX-License-Identifier: Apache-2.0
"""`probe export`: predictions in the forms that schedulers read."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import strict_json
from checkpoint.errors import ProbeError
from checkpoint.foreign_file import read_foreign_json
from probe.cli.parameters import DIMENSIONS, MAX_PHASES, SEED
from probe.cli.rows import JSON, JSON_FORMAT, STORE, json_asked, json_or, print_outcome
from probe.terminal import say

if TYPE_CHECKING:
    from probe.schedulers.usable import Predicted

CSV, CONDOR, KUBERNETES = "csv", "condor", "k8s"
EXPORT_VERSION = 1


@click.command()
@JSON_FORMAT
@click.argument("names", metavar="[PROBE]...", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice((JSON, CSV, CONDOR, KUBERNETES)),
    default=JSON,
    show_default=True,
    callback=json_or,
    help="condor: machine attributes; k8s: answer of a scheduler extender.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; condor: a folder.")
@click.option("--arguments", type=click.Path(path_type=Path), help="k8s: what the scheduler sent; - is standard input.")
@click.option("--simpoint", is_flag=True, help="A profile in SimPoint's format: OUTPUT.bb, .simpoints, .weights.")
@MAX_PHASES
@DIMENSIONS
@SEED
@STORE
def export(
    names: tuple[str, ...],
    form: str,
    output: Path | None,
    arguments: Path | None,
    simpoint: bool,
    max_phases: int,
    dimensions: int,
    seed: int,
    url: str | None,
) -> None:
    """Write predictions for schedulers, of the probes named or all; with --simpoint a profile for SimPoint."""
    if simpoint:
        _write_points(names, output, max_phases, dimensions, seed)
        return
    from probe.schedulers.usable import usable, write_whole
    from probe.store.opening import open_store
    from probe.store.reading import find_probe

    if arguments is not None and form != KUBERNETES:
        raise click.UsageError("--arguments goes with --format k8s")
    with open_store(url, create=False) as opened:
        if form == KUBERNETES:
            text = _prioritized(opened, names, arguments)
        else:
            predicted = usable(opened, [find_probe(opened, name) for name in names])
            if stale := sum(item.stale for item in predicted):
                say(f"probe: {stale} stale predictions left out; run the probes there again", err=True)
            if unfit := sum(item.unfit for item in predicted):
                say(f"probe: {unfit} predictions left out: the nodes have too few processors for the threads", err=True)
            if form == CONDOR:
                _write_ads(predicted, output)
                return
            text = _rows_text(predicted, form)
    if output is None:
        say(text, end=False)
    else:
        write_whole(output, text)


def _write_points(names: Sequence[str], output: Path | None, max_phases: int, dimensions: int, seed: int) -> None:
    from probe.formats.choices import SelectionOptions
    from probe.formats.profile import load_profile
    from probe.selection.simpoint import export as export_points

    if len(names) != 1 or output is None:
        raise click.UsageError("--simpoint takes one FILE.profile, and -o with the PREFIX of the files")
    options = SelectionOptions(max_phases=max_phases, dimensions=dimensions, seed=seed)
    written = export_points(load_profile(Path(names[0])), output, options)
    files = ", ".join(str(path) for path in written.files)
    print_outcome(
        json_asked(),
        f"{files}: {written.intervals} intervals, {written.points} points",
        files=[str(path) for path in written.files],
        intervals=written.intervals,
        points=written.points,
    )


def _rows_text(predicted: Sequence[Predicted], form: str) -> str:
    from probe.store.records import iso

    rows: list[dict[str, Any]] = [
        {
            "probe": item.probe.name,
            "key": item.probe.key,
            "threads": item.probe.threads,
            "node": node.node,
            "cluster": node.cluster,
            "seconds": node.seconds,
            "low": node.low,
            "high": node.high,
            "prediction": node.prediction,
            "made_at": iso(node.made_at),
        }
        for item in predicted
        for node in item.nodes
    ]
    if form == JSON:
        return strict_json.dumps({"format_version": EXPORT_VERSION, "predictions": rows}, indent=2) + "\n"
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _write_ads(predicted: Sequence[Predicted], folder: Path | None) -> None:
    from probe.schedulers.condor import machine_ads
    from probe.schedulers.usable import write_whole

    ads = machine_ads(predicted)
    if folder is None:
        say("\n".join(ads.values()), end=False)
        return
    for node, text in ads.items():
        if "/" in node or node.startswith("."):
            raise ProbeError(f"node {node!r}: not a name for a file; write to standard output instead")
        write_whole(folder / f"{node}.ad", text)


def _prioritized(opened: Any, names: tuple[str, ...], arguments: Path | None) -> str:
    from probe.schedulers.kubernetes import asked_nodes, prioritize, probe_of
    from probe.schedulers.usable import usable
    from probe.store.reading import find_probe

    if len(names) > 1:
        raise click.UsageError("--format k8s answers for one probe")
    given = _read_arguments(arguments) if arguments else None
    name = names[0] if names else probe_of(given) if given is not None else None
    if name is None and given is None:
        raise click.UsageError("--format k8s needs a probe, or --arguments with a pod whose label names it")
    # A pod without the label is none of ours: every node gets 0, and the scheduler decides.
    predicted = usable(opened, [find_probe(opened, name)])[0] if name is not None else None
    return strict_json.dumps(prioritize(predicted, asked_nodes(given) if given is not None else None)) + "\n"


def _read_arguments(path: Path) -> dict[str, Any]:
    value = read_foreign_json(path, "pass on what the scheduler sent")
    if not isinstance(value, dict):
        raise ProbeError(f"{path}: not the ExtenderArgs of a scheduler; pass on what it sent")
    return value
