# SPDX-License-Identifier: Apache-2.0
"""Commands of `probe store` that take results and resource profiles in, and list the profiles."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint.errors import ProbeError, StorageError
from checkpoint.foreign_file import read_foreign_json
from probe.cli.figures import seconds
from probe.cli.parameters import Moment
from probe.cli.rows import AS_JSON, FORMAT, STORE, percent, print_outcome, print_rows

if TYPE_CHECKING:
    from probe.emulation.usage import Usage


@click.command(name="import")
@click.argument("files", metavar="RESULT.json...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--probe", "probe_file", type=click.Path(path_type=Path), help="The probe file, to tell its input apart.")
@click.option("--name", help="Name of the probe. [default: that of its file]")
@click.option("--node", help="Name of the node, in place of its host name.")
@click.option("--cluster", help="Cluster that the node belongs to.")
@click.option("--tag", "tags", multiple=True, help="Mark the probe with this word. Repeatable.")
@click.option("--at", "moment", type=Moment(), help="When it was measured. [default: when the file was written]")
@AS_JSON
@STORE
def import_(
    files: tuple[Path, ...],
    probe_file: Path | None,
    name: str | None,
    node: str | None,
    cluster: str | None,
    tags: tuple[str, ...],
    moment: float | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Store what `probe run --json` or `probe emulate --json` printed (- is standard input), and resource profiles."""
    from probe.store.emulations import import_emulations, import_usages, is_emulation
    from probe.store.importing import import_results, input_checksum
    from probe.store.opening import open_store

    inputs = input_checksum(probe_file) if probe_file else ""
    profiles = [path for path in files if path.suffix == ".usage"]
    profiled = _profiles(profiles)
    read = [(path, *_results(path)) for path in files if path not in profiles]
    stored = known = emulated = 0
    with open_store(url) as opened:
        for path, results, written in read:
            try:
                if any(map(is_emulation, results)):
                    done = import_emulations(
                        opened, results, made_at=moment or written, name=name, node=node, cluster=cluster
                    )
                    emulated, known = emulated + len(done.stored), known + done.known
                    continue
                done = import_results(
                    opened,
                    results,
                    made_at=moment or written,
                    name=name,
                    node=node,
                    cluster=cluster,
                    inputs=inputs,
                    tags=tags,
                )
            except ProbeError as error:
                raise type(error)(f"{path}: {error}") from error
            stored, known = stored + len(done.stored), known + done.known
        done = import_usages(opened, profiled)
        known += done.known
        more = f", {emulated} emulations" * bool(emulated) + f", {len(done.stored)} profiles" * bool(profiles)
        print_outcome(
            as_json,
            f"{opened.name}: {stored} predictions{more} stored, {known} were there already",
            store=opened.name,
            stored=stored,
            emulations=emulated,
            profiles=len(done.stored),
            known=known,
        )


def _profiles(paths: Sequence[Path]) -> list[Usage]:
    if not paths:
        return []
    # It loads numpy, which who imports results alone shall not wait for.
    from probe.emulation.usage import load_usage

    return [load_usage(path) for path in paths]


def _results(path: Path) -> tuple[list[Mapping[str, Any]], float]:
    """The results in a file, and when it was written. Raises ProbeError, StorageError."""
    value = read_foreign_json(path, "give the file that `probe run --json` printed")
    try:
        written = time.time() if str(path) == "-" else path.stat().st_mtime
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    if isinstance(value, dict) and isinstance(value.get("candidates"), list):
        # What `--on` printed: candidates without a prediction have nothing to store.
        value = [one.get("result") for one in value["candidates"] if isinstance(one, dict)]
        value = [result for result in value if result is not None]
    return value if isinstance(value, list) else [value], written


@click.command()
@FORMAT
@STORE
def usages(form: str, url: str | None) -> None:
    """List resource profiles: by command, tags and node, each figure with its spread."""
    from probe.store.emulations import stored_usages
    from probe.store.opening import open_store

    with open_store(url, create=False) as opened:
        rows = [one.to_json() for one in stored_usages(opened)]
    columns = {
        "command": lambda r: " ".join(r["program"]),
        "tags": lambda r: ",".join(f"{tag['name']}={tag['value']}" for tag in r["tags"]),
        "node": lambda r: r["node"],
        "runs": lambda r: str(r["runs"]),
        "took": lambda r: _mean(r, "seconds"),
        "CPU": lambda r: _mean(r, "cpu_seconds"),
        "spread of CPU": lambda r: _spread(r, "cpu_seconds"),
    }
    print_rows(rows, form, "usages", columns)


def _metric(row: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((metric for metric in row["metrics"] if metric["name"] == name), None)


def _mean(row: Mapping[str, Any], name: str) -> str:
    known = _metric(row, name)
    return seconds(known["mean"]) if known else "-"


def _spread(row: Mapping[str, Any], name: str) -> str:
    known = _metric(row, name)
    return "-" if not known or known["deviation"] is None else percent(known["deviation"] / known["mean"])
