# SPDX-License-Identifier: Apache-2.0
"""Import runs from JSON and from performance logs of ReFrame."""

from __future__ import annotations

import csv
import datetime
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import read_foreign, read_foreign_json
from probe.applications.application import Application, Kernel, read_application
from probe.applications.inputs import Configuration, configuration
from probe.store.parallel_run import ParallelRun, checked_run, runs_from_json

_SEPARATORS = ("|", ",")
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_MOST_LINE = 1 << 20


@dataclass(frozen=True)
class Origin:
    """The kernel and the configuration that imported runs belong to."""

    application: Application
    kernel: Kernel
    configuration: Configuration

    @classmethod
    def of(cls, path: Path, kernel: str, settings: Mapping[str, float]) -> Origin:
        """Read the description and the kernel's inputs. Raises ProbeError, StorageError."""
        application = read_application(path)
        found = application.kernel(kernel)
        return cls(application, found, configuration(application, found, settings))

    def fields(self) -> dict[str, object]:
        """What every run of it has."""
        return {
            "app": self.application.name,
            "kernel": self.kernel.name,
            "config": self.configuration.hash,
            "parameters": self.configuration.parameters,
            "work": self.configuration.work,
            "threads": self.kernel.threads,
        }


def runs_of_json(path: Path) -> list[ParallelRun]:
    """Runs as `probe store runs --format json` prints them. Raises ProbeError with the run and key that is wrong."""
    try:
        return runs_from_json(read_foreign_json(path, "give what `probe store runs --format json` printed"))
    except ProbeError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def runs_of_reframe(
    path: Path, origin: Origin, time_name: str, mpi_name: str | None = None
) -> tuple[list[ParallelRun], dict[str, int]]:
    """Runs of a performance log of ReFrame 4: lines under a head of attributes, separated by | or a comma.

    Each variable has the columns NAME_value and NAME_unit. The type of nodes is `system:partition`. Also returns why
    lines were left out, and how many. Raises ProbeError where the head lacks what is needed.
    """
    text = read_foreign(path).decode("utf-8", errors="replace")
    found, left_out, head = [], dict[str, int](), None
    for row in _rows(text, path):
        if f"{time_name}_value" in row:
            head = row
            _check_head(head, path, mpi_name)
            continue
        if head is None:
            raise ProbeError(f"{path}: its head has no column {time_name}_value; see --time")
        # A further field behind the last separator is empty.
        line = dict(zip(head, row, strict=False))
        reason, run = _reframe_run(line, origin, time_name, mpi_name)
        if run is None:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            found.append(run)
    return found, left_out


def _rows(text: str, path: Path) -> Iterator[list[str]]:
    first = text.split("\n", 1)[0]
    separator = max(_SEPARATORS, key=first.count)
    try:
        for row in csv.reader(text.splitlines(), delimiter=separator, quoting=csv.QUOTE_NONE):
            if row:
                yield [cell.strip() for cell in row]
    except csv.Error as error:
        raise ProbeError(f"{path}: not a performance log of ReFrame ({error})") from error


def _check_head(head: list[str], path: Path, mpi_name: str | None) -> None:
    wanted = ["system", "partition", "num_tasks", "job_completion_time", *([f"{mpi_name}_value"] if mpi_name else [])]
    if lacking := [name for name in wanted if name not in head]:
        raise ProbeError(f"{path}: its head has no column {lacking[0]}; add it to ReFrame's perflog format")


def _reframe_run(
    line: Mapping[str, str], origin: Origin, time_name: str, mpi_name: str | None
) -> tuple[str, ParallelRun | None]:
    if line.get("result", "pass").lower() not in ("pass", "p"):
        return "not passed", None
    try:
        tasks = int(line["num_tasks"])
        threads = _number(line.get("num_cpus_per_task"), origin.kernel.threads)
        per_node = _number(line.get("num_tasks_per_node"), tasks)
        ended = datetime.datetime.fromisoformat(line["job_completion_time"].replace("Z", "+00:00")).timestamp()
        values = {name: _seconds(line, name) for name in (time_name, *([mpi_name] if mpi_name else []))}
        node_type = f"{line['system']}:{line['partition']}"
    except (KeyError, ValueError, OverflowError):
        return "fields are missing, or are no numbers", None
    identity = hashlib.sha256("|".join(line.values()).encode()).hexdigest()[:32]
    threads = max(threads, 1)
    said = {
        **origin.fields(),
        "node_type": node_type,
        "ranks": tasks,
        "threads": threads,
        "cores": tasks * threads,
        "nodes": max(1, -(-tasks // max(per_node, 1))),
        "runtime": values[time_name],
        "mpi": values[mpi_name] if mpi_name else origin.kernel.known_mpi,
        "ended_at": ended,
        "source": f"reframe:{identity}",
    }
    try:
        return "", checked_run(said, "a line")
    except ProbeError as error:
        return str(error).removeprefix("a line: ").split(";")[0], None


def _number(text: str | None, default: int) -> int:
    return default if text in (None, "", "null", "None") else int(str(text))


def _seconds(line: Mapping[str, str], name: str) -> float:
    return float(line[f"{name}_value"]) * _UNITS[line.get(f"{name}_unit", "").strip().lower()]
