# SPDX-License-Identifier: Apache-2.0
"""Slurm as what runs probes: one exclusive job per node, or per kind of node, and their results into the store.

Every node runs `probe run --json` itself: the tool and the probe file must be at the same paths there.
"""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import SlurmError
from probe.slurm.facts import SlurmFacts, SlurmNode, call, slurm_facts
from probe.store.describing import describe_node
from probe.store.importing import Imported, import_results, input_checksum
from probe.store.opening import Store
from probe.store.reading import too_few

DEFAULT_MINUTES = 60
_POLL = 1.0
_NEVER = {
    "AccountNotAllowed",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
}
"""Reasons that only somebody's hand can end."""
_FILE_PATIENCE = 20.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class SlurmRun:
    """results: what each node's `probe run --json` printed, by node; failures: why a node gave none."""

    results: Mapping[str, dict[str, Any]]
    failures: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As in docs/json.md."""
        failures = [{"node": node, "reason": reason} for node, reason in self.failures.items()]
        return {"format_version": 1, "results": list(self.results.values()), "failures": failures}


def chosen_nodes(facts: SlurmFacts, partition: str | None = None, per_kind: bool = False) -> list[SlurmNode]:
    """Nodes of the partition where jobs can start; `per_kind`: one of each kind. Raises SlurmError without any."""
    wanted = partition or facts.default_partition
    if wanted not in {known.name for known in facts.partitions}:
        raise SlurmError(f"no partition {wanted!r}; there are: {', '.join(p.name for p in facts.partitions)}")
    nodes = [node for node in facts.nodes if wanted in node.partitions and node.available]
    if not nodes:
        raise SlurmError(f"no node of partition {wanted} is up; see sinfo -R")
    if per_kind:
        nodes = list({node.kind: node for node in reversed(nodes)}.values())[::-1]
    return nodes


def minutes_for(budget: float) -> int:
    """Time limit of a job that may time phases for so many seconds: an hour, or ten minutes more than these."""
    return max(DEFAULT_MINUTES, 10 + math.ceil(budget / 60))


def run_on_slurm(
    path: Path,
    options: Sequence[str],
    *,
    partition: str | None = None,
    per_kind: bool = False,
    shared: Path | None = None,
    minutes: int = DEFAULT_MINUTES,
    threads: int = 1,
) -> SlurmRun:
    """Run the probe at `path` on the partition's nodes, each alone on its node, and wait for all.

    options: further ones of `probe run`. shared: folder that all nodes see, for what the jobs print (default: the
    probe's). minutes: the jobs' time limit. threads: that share the work: a node with fewer processors gets no job, and
    is among the failures. Jobs are cancelled when this is interrupted. Raises SlurmError where Slurm takes no job.
    """
    probe = path.absolute()
    facts = slurm_facts()
    nodes = chosen_nodes(facts, partition, per_kind)
    longest = next(p.max_minutes for p in facts.partitions if p.name == (partition or facts.default_partition))
    # A limit above the partition's would let the jobs wait for ever.
    minutes = minutes if longest is None else min(minutes, longest)
    with tempfile.TemporaryDirectory(prefix=".probe-slurm-", dir=shared or probe.parent) as folder:
        jobs: dict[str, str] = {}
        refused: dict[str, str] = {}
        try:
            for node in nodes:
                if few := too_few(threads, node.cpus):
                    refused[node.name] = few
                    continue
                try:
                    jobs[node.name] = _start(node, probe, options, partition, Path(folder), minutes, threads)
                except SlurmError as error:
                    refused[node.name] = str(error)
            if not jobs:
                raise SlurmError(next(iter(refused.values())))
            hopeless = _wait(set(jobs.values()))
        except BaseException:
            for job in jobs.values():
                with suppress(SlurmError):
                    call("scancel", job)
            raise
        results: dict[str, dict[str, Any]] = {}
        for name, job in jobs.items():
            if job in hopeless:
                refused[name] = f"job {job} would never start ({hopeless[job]}) and was cancelled"
                continue
            printed = _result(Path(folder) / f"{name}.json", Path(folder) / f"{name}.err", job)
            if isinstance(printed, str):
                refused[name] = printed
            else:
                results[name] = printed
    return SlurmRun(results, refused)


def _start(
    node: SlurmNode,
    probe: Path,
    options: Sequence[str],
    partition: str | None,
    folder: Path,
    minutes: int,
    threads: int,
) -> str:
    command = [sys.executable, "-m", "probe", "run", str(probe), "--json", "--quiet", *options]
    script = f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(_ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}\nexport PYTHONPATH\n"
    script += f"exec {shlex.join(command)}\n"
    said, _ = call(
        "sbatch",
        "--parsable",
        "--exclusive",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={threads}",
        f"--nodelist={node.name}",
        f"--job-name=probe-run-{probe.stem}",
        f"--time={minutes}",
        # A prediction's own job must not be given another prediction's time limit.
        "--comment=probe=off",
        "--chdir=/",
        f"--output={folder / node.name}.json",
        f"--error={folder / node.name}.err",
        *((f"--partition={partition}",) if partition else ()),
        given=script,
    )
    return said.strip().split(";")[0]


def _wait(jobs: set[str]) -> dict[str, str]:
    """Until none of the jobs is in the queue any more. Those that Slurm will never start are cancelled: why, by job."""
    hopeless: dict[str, str] = {}
    while True:
        said, _ = call("squeue", "--noheader", "--format=%i|%r")
        queued = dict(line.strip().split("|", 1) for line in said.splitlines() if "|" in line)
        if not queued.keys() & jobs:
            return hopeless
        for job in queued.keys() & jobs:
            if queued[job] in _NEVER and job not in hopeless:
                hopeless[job] = queued[job]
                call("scancel", job)
        time.sleep(_POLL)


def _result(output: Path, errors: Path, job: str) -> dict[str, Any] | str:
    """What the job printed, or why there is nothing. A shared file system may show the file some seconds late."""
    deadline = time.monotonic() + _FILE_PATIENCE
    while True:
        try:
            text = output.read_text()
            if text.strip():
                value: dict[str, Any] = strict_json.loads(text)
                return value
            said = errors.read_text(errors="replace").strip().splitlines()
            if said:
                return f"job {job}: {said[-1]}"
        except (OSError, ValueError) as error:
            last = str(error)
        else:
            last = "it printed nothing"
        if time.monotonic() > deadline:
            return f"job {job}: {last}; is {output.parent.parent} shared with the node? See sacct -j {job}"
        time.sleep(_POLL / 5)


def store_run(store: Store, run: SlurmRun, path: Path, made_at: float) -> Imported:
    """Enter the results under Slurm's names of the nodes, with their features. Raises StoreBusy, StoreUnusable."""
    stored: list[int] = []
    known = 0
    inputs = input_checksum(path)
    for name, result in run.results.items():
        done = import_results(store, [result], made_at=made_at, node=name, inputs=inputs)
        stored += done.stored
        known += done.known
    for node in slurm_facts().nodes:
        if node.name in run.results:
            describe_node(store, node.name, features=node.features, seen_at=made_at)
    return Imported(tuple(stored), known)
