# SPDX-License-Identifier: Apache-2.0
"""Runs of kernels from Slurm's accounting: cores, run time, wait and joules of jobs that are named like kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from checkpoint.errors import ProbeError
from probe.applications.application import Application, Kernel
from probe.applications.inputs import Configuration, configuration
from probe.slurm.facts import call
from probe.store.parallel_run import ParallelRun, checked_run

_FIELDS = (
    "JobIDRaw", "Cluster", "JobName", "Partition", "NNodes", "AllocCPUS", "State", "Submit", "Start", "End",
    "ConsumedEnergyRaw", "Comment",
)  # fmt: skip
BENCHMARK: Final = "probe-bench"
"""Word in the comment of jobs that are benchmarks: their runs are in the store, with MPI times."""

_SETTING = re.compile(r"\b([A-Za-z_]\w*)=(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])")


@dataclass(frozen=True)
class ReadRuns:
    """Runs, and other jobs by the reason why they are none."""

    runs: tuple[ParallelRun, ...]
    skipped: Mapping[str, int]


def read_runs(
    application: Application,
    settings: Mapping[str, float],
    *,
    since: str | None = None,
    threads_per_core: int = 1,
) -> ReadRuns:
    """Jobs called APPLICATION.KERNEL that succeeded. Their partition is the type of nodes.

    Parameters are those of the inputs as they are now, `settings`, and NAME=NUMBER in a job's comment.
    threads_per_core: of what Slurm calls CPUs. Raises SlurmError.
    """
    command = ["sacct", "--noheader", "--parsable2", "--allusers", "--allocations", "--format", ",".join(_FIELDS)]
    if since:
        command += ["--starttime", since]
    said, _ = call(*command, environment={"SLURM_TIME_FORMAT": "%s"})
    return runs_of_lines(said.splitlines(), application, settings, threads_per_core)


def runs_of_lines(
    lines: Iterable[str], application: Application, settings: Mapping[str, float], threads_per_core: int = 1
) -> ReadRuns:
    """As `read_runs`, from what sacct printed."""
    kernels = {f"{application.name}.{kernel.name}": kernel for kernel in application.kernels.values()}
    found, skipped = [], dict[str, int]()
    for line in lines:
        reason, run = _run(line.split("|"), kernels, application, settings, threads_per_core)
        if run is None:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            found.append(run)
    return ReadRuns(tuple(found), skipped)


def _run(
    cells: list[str],
    kernels: Mapping[str, Kernel],
    application: Application,
    settings: Mapping[str, float],
    threads_per_core: int,
) -> tuple[str, ParallelRun | None]:
    if len(cells) < len(_FIELDS):
        return "fields are missing", None
    # A comment may have the separator in it.
    job = dict(zip(_FIELDS, [*cells[: len(_FIELDS) - 1], "|".join(cells[len(_FIELDS) - 1 :])], strict=True))
    kernel = kernels.get(job["JobName"])
    if kernel is None:
        return "called like no kernel", None
    if BENCHMARK in job["Comment"].split():
        return "made by `probe bench`, which stored it", None
    if job["State"] != "COMPLETED":
        return "not completed", None
    given = {**settings, **{name: float(value) for name, value in _SETTING.findall(job["Comment"])}}
    try:
        found = configuration(application, kernel, {n: v for n, v in given.items() if n in kernel.parameters})
        return "", checked_run(_fields(job, application, kernel, found, threads_per_core), "a job")
    except ValueError:
        return "fields are missing, or are no numbers", None
    except ProbeError as error:
        return str(error).removeprefix("a job: ").split(";")[0], None


def _fields(
    job: Mapping[str, str], application: Application, kernel: Kernel, found: Configuration, threads_per_core: int
) -> dict[str, object]:
    start, end, cpus = float(job["Start"]), float(job["End"]), int(job["AllocCPUS"])
    cores = cpus // threads_per_core
    joules = float(job["ConsumedEnergyRaw"] or 0)
    return {
        "app": application.name,
        "kernel": kernel.name,
        "node_type": job["Partition"],
        "nodes": int(job["NNodes"]),
        "cores": cores,
        # Accounting of allocations does not know the ranks: one for each core, or for each `threads` of them.
        "ranks": max(1, cores // kernel.threads),
        "threads": kernel.threads,
        "config": found.hash,
        "parameters": found.parameters,
        "work": found.work,
        "runtime": end - start,
        "mpi": kernel.known_mpi,
        "wait": start - float(job["Submit"]),
        "ended_at": end,
        "energy": joules if joules > 0 else None,
        "energy_source": "accounting" if joules > 0 else "",
        "source": f"slurm:{job['Cluster'] or '-'}:{job['JobIDRaw']}:{start:.0f}",
    }
