# SPDX-License-Identifier: Apache-2.0
"""Answers about waits, in three ways: Slurm's own answer, a bound from history, a simulation of the present queue."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checkpoint.errors import ProbeError, SlurmError
from probe.scaling.backfilling import Job, Running, simulate
from probe.scaling.waiting import Wait, bound
from probe.slurm.facts import call, slurm_facts

_FIELDS = ("JobIDRaw", "Partition", "AllocCPUS", "ReqCPUS", "TimelimitRaw", "Submit", "Start", "State")
_QUEUE = "%i|%T|%C|%l|%L|%V|%Q|%D|%h"
_START = re.compile(r"to start at (\S+) using (\d+)")
_EPOCH = {"SLURM_TIME_FORMAT": "%s"}
_STANDARD = {"SLURM_TIME_FORMAT": "standard"}
_DEFAULT_LIMIT = 86400.0


@dataclass(frozen=True)
class Answer:
    """One way's answer: `seconds` of waiting, None where it has none and `reason` says why. basis: what it is from."""

    way: str
    seconds: float | None
    basis: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def answers(
    partition: str | None,
    cores: int,
    seconds: float,
    probability: float,
    *,
    since: str = "now-30days",
    usage: float = 1.0,
) -> list[Answer]:
    """Slurm's answer, the bound that holds with `probability`, and the simulated one, in this order.

    seconds: time limit of the job. usage: share of its limit that a job of the queue really runs. Raises SlurmError
    where there is no Slurm or no such partition.
    """
    facts = slurm_facts()
    name = partition or facts.default_partition
    if name not in {known.name for known in facts.partitions}:
        raise SlurmError(f"no partition {name!r}; there are: {', '.join(p.name for p in facts.partitions)}")
    cpus = [node.cpus for node in facts.nodes if name in node.partitions and node.available]
    return [
        _said("Slurm", lambda: _test_only(name, cores, seconds)),
        _said("history", lambda: _from_history(name, cores, seconds, probability, since)),
        _said("simulation", lambda: _simulated(name, cores, seconds, cpus, usage)),
    ]


def _said(way: str, ask: Any) -> Answer:
    try:
        waits, basis = ask()
        return Answer(way, max(waits, 0.0), basis)
    except ProbeError as error:
        return Answer(way, None, "", str(error))


def _test_only(partition: str, cores: int, seconds: float) -> tuple[float, str]:
    minutes = max(1, round(seconds / 60 + 0.499))
    command = ["sbatch", "--test-only", f"--partition={partition}", f"--ntasks={cores}", f"--time={minutes}"]
    _, said = call(*command, environment=_STANDARD, given="#!/bin/sh\ntrue\n")
    found = _START.search(said)
    if found is None:
        raise SlurmError(f"sbatch did not say when it would start: {said.strip()[:200]}")
    starts = datetime.datetime.fromisoformat(found[1]).timestamp()
    return starts - time.time(), f"sbatch --test-only, {found[2]} processors"


def _from_history(partition: str, cores: int, limit: float, probability: float, since: str) -> tuple[float, str]:
    history, skipped = past_waits(partition, since)
    found = bound([*history, *present_waits(partition)], cores, limit, probability)
    left = f", {skipped} without times left out" if skipped else ""
    return found.seconds, f"{found.like} like jobs since {since}{left}; holds with probability {probability:g}"


def past_waits(partition: str, since: str) -> tuple[list[Wait], int]:
    """Waits of jobs that have started, from accounting, and how many lines lacked what is needed. Raises SlurmError."""
    command = ["sacct", "--noheader", "--parsable2", "--allusers", "--allocations", f"--starttime={since}"]
    said, _ = call(*command, f"--partition={partition}", "--format", ",".join(_FIELDS), environment=_EPOCH)
    found, skipped = [], 0
    for line in said.splitlines():
        job = dict(zip(_FIELDS, line.split("|"), strict=False))
        wait = _past_wait(job)
        if wait is None:
            skipped += job.get("State") not in ("PENDING", "RUNNING")
        else:
            found.append(wait)
    return found, skipped


def _past_wait(job: dict[str, str]) -> Wait | None:
    """None for a job that never started, or whose fields are missing."""
    try:
        submitted, started = float(job["Submit"]), float(job["Start"])
        cores = int(job["AllocCPUS"]) or int(job["ReqCPUS"])
        limit = job["TimelimitRaw"]
    except (KeyError, ValueError):
        return None
    if started < submitted or cores < 1:
        return None
    return Wait(submitted, started - submitted, cores, float(limit) * 60 if limit.isdecimal() else None)


@dataclass(frozen=True)
class _Queued:
    name: str
    waits: bool
    cores: int
    limit: float
    left: float
    submitted: float
    priority: float


def _queue(partition: str, node_cpus: int = 1) -> list[_Queued]:
    """Jobs that run or wait. One that waits for whole nodes takes all of their processors, whatever it asks for."""
    said, _ = call("squeue", "--noheader", f"--partition={partition}", "--states=PD,R,CG", f"--format={_QUEUE}",
                   environment=_EPOCH)  # fmt: skip
    found = []
    for line in said.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 9 or not (parts[2].isdecimal() and parts[7].isdecimal()):
            continue
        name, state, asked, limit, left, submitted, priority, nodes, shares = parts
        cores = max(int(asked), int(nodes) * node_cpus if shares == "NO" else 0)
        try:
            moment, rank = float(submitted), float(priority)
        except ValueError:
            continue
        found.append(_Queued(name, state == "PENDING", cores, _seconds(limit), _seconds(left), moment, rank))
    return found


def _seconds(text: str) -> float:
    """Seconds of a time as squeue writes it; a day where there is no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not found:
        return _DEFAULT_LIMIT
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((24.0 * days + hours) * 60 + minutes) * 60 + seconds


def present_waits(partition: str) -> list[Wait]:
    """Waits, so far, of the jobs that wait now."""
    now = time.time()
    return [
        Wait(one.submitted, now - one.submitted, one.cores, one.limit, ended=False)
        for one in _queue(partition)
        if one.waits
    ]


def _simulated(partition: str, cores: int, limit: float, cpus: Sequence[int], usage: float) -> tuple[float, str]:
    now, queue, total = time.time(), _queue(partition, max(cpus, default=1)), sum(cpus)
    waiting = [one for one in queue if one.waits]
    running = [Running(one.cores, now + one.left * usage, now + one.left) for one in queue if not one.waits]
    mine = "the job"
    last = min((one.priority for one in waiting), default=0.0)
    jobs = [Job(one.name, one.submitted, one.cores, one.limit * usage, one.limit, one.priority) for one in waiting]
    starts = simulate([*jobs, Job(mine, now, cores, limit, limit, last)], total, now=now, running=running)
    if mine not in starts:
        raise SlurmError(f"{cores} cores will not be free: nodes of {partition} are down")
    basis = f"EASY backfilling, {len(running)} jobs run and {len(waiting)} wait on {total} processors"
    return starts[mine] - now, basis
