# SPDX-License-Identifier: Apache-2.0
"""Run times of finished jobs, from sacct into the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint.errors import NotInStore
from probe.slurm.facts import call
from probe.store.observing import Observation, observe_all
from probe.store.opening import Store
from probe.store.reading import all_nodes, all_probes, find_prediction
from probe.store.records import StoredProbe

_FIELDS = ("JobIDRaw", "Cluster", "JobName", "NodeList", "State", "Start", "End", "Comment", "AdminComment")
_PREDICTION = re.compile(r"\bprediction=(\d+)\b")


@dataclass(frozen=True)
class ReadJobs:
    """stored: observations that are new; known: that were there. skipped: other finished jobs, by the reason."""

    stored: int
    known: int
    skipped: Mapping[str, int]


def read_jobs(
    store: Store, *, since: str | None = None, completion_log: bool = False, by_name: bool = False
) -> ReadJobs:
    """Store the run times of jobs that succeeded and belong to a prediction.

    A job belongs to the prediction that its comment or admin comment names; with `by_name` also to the probe that it is
    called like. since: as sacct reads times. completion_log: read the job completion log, which holds no comments.
    Raises SlurmError, StoreBusy.
    """
    command = ["sacct", "--noheader", "--parsable2", "--allusers", "--format", ",".join(_FIELDS)]
    if completion_log:
        command.append("--completion")
    else:
        # Not --state: with it sacct shows only jobs that were in that state at --starttime.
        command.append("--allocations")
    if since:
        command += ["--starttime", since]
    said, _ = call(*command, environment={"SLURM_TIME_FORMAT": "%s"})
    nodes = {node.name: node for node in all_nodes(store)}
    probes = all_probes(store)
    named: dict[str, StoredProbe | None] = {}
    for probe in probes:
        named[probe.name] = None if probe.name in named else probe
    found: list[Observation] = []
    skipped: dict[str, int] = {}
    for line in said.splitlines():
        job = dict(zip(_FIELDS, line.split("|"), strict=False))
        reason, item = _observation(store, job, nodes, probes, named if by_name else {})
        if item is None:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            found.append(item)
    stored = observe_all(store, found)
    return ReadJobs(stored, len(found) - stored, skipped)


def _observation(
    store: Store,
    job: Mapping[str, str],
    nodes: Mapping[str, object],
    probes: list[StoredProbe],
    named: Mapping[str, StoredProbe | None],
) -> tuple[str, Observation | None]:
    """Why the job tells nothing, or what it tells."""
    if job.get("State") != "COMPLETED":
        return "not completed", None
    mark = _PREDICTION.search(f"{job.get('AdminComment', '')} {job.get('Comment', '')}")
    probe = named.get(job["JobName"])
    if mark:
        try:
            wanted = find_prediction(store, int(mark[1]))
        except NotInStore:
            return "names a prediction that the store has not", None
        probe = next((p for p in probes if p.id == wanted.probe_id), None)
    if probe is None:
        return "without a prediction", None
    node = nodes.get(job["NodeList"])
    if node is None:
        return "on several nodes, or one that the store has not", None
    try:
        start, end = float(job["Start"]), float(job["End"])
    except ValueError:
        return "without times", None
    if end <= start:
        return "shorter than a second", None
    # Numbers of jobs begin anew when a cluster is set up anew.
    source = f"slurm:{job.get('Cluster') or '-'}:{job['JobIDRaw']}:{start:.0f}"
    return "", Observation(probe, node, end - start, end, source)  # type: ignore[arg-type]
