# SPDX-License-Identifier: Apache-2.0
"""Benchmarks as jobs of Slurm: one after the other, exclusive, with their wait and, where it is counted, energy."""

from __future__ import annotations

import math
import re
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from checkpoint.errors import ProgramFailed, SlurmError
from probe.scaling.bench import Measured, Order, run_of
from probe.slurm.facts import call
from probe.slurm.run_accounting import BENCHMARK
from probe.store.parallel_run import ParallelRun

_POLL = 0.5
_FILE_SECONDS = 20.0


def run_as_job(wanted: Order, seconds: float, partition: str | None = None) -> ParallelRun:
    """Submit it and wait for its end. The application's folder must be at the same path on the nodes.

    Raises SlurmError, ProgramFailed.
    """
    with tempfile.TemporaryDirectory(prefix=".probe-bench-", dir=wanted.folder) as folder:
        output = Path(folder) / "said"
        command = [
            "sbatch", "--parsable", "--exclusive", f"--ntasks={wanted.ranks}",
            f"--cpus-per-task={wanted.kernel.threads}", f"--time={max(1, round(seconds / 60 + 0.499))}",
            f"--job-name={wanted.application.name}.{wanted.kernel.name}", f"--comment=probe=off {BENCHMARK}",
            "--chdir=/",
            f"--output={output}", *((f"--partition={partition}",) if partition else ()),
        ]  # fmt: skip
        # Of several nodes the first one cannot tell how many cores there are.
        said, _ = call(*command, given="#!/bin/sh\n" + wanted.script(nodes=2))
        job = said.strip().split(";")[0]
        try:
            facts = _wait(job)
        except BaseException:
            with suppress(SlurmError):
                call("scancel", job)
            raise
        if facts.get("JobState") != "COMPLETED":
            raise ProgramFailed(f"job {job} of {wanted.kernel.name} ended as {facts.get('JobState', 'unknown')}")
        run = run_of(wanted, _said(output, job), _measured(facts))
        return with_joules(run, _accounted(job))


def with_joules(run: ParallelRun, accounted: str) -> ParallelRun:
    """The run with its part of the job's joules, by time: `accounted` is the line `ELAPSED|JOULES` of sacct.

    Slurm counts from the job's beginning, before the run. As it came where Slurm counts no energy.
    """
    elapsed, _, joules = accounted.strip().partition("|")
    try:
        counted, seconds = float(joules), float(elapsed)
    except ValueError:
        return run
    if not 0 < counted < math.inf:
        return run
    part = min(run.runtime / max(seconds, run.runtime), 1.0)
    return replace(run, energy=counted * part, energy_source="accounting")


def _accounted(job: str) -> str:
    """What accounting says of the ended job's time and joules; empty without accounting, or where none are counted."""
    try:
        configured, _ = call("scontrol", "show", "config")
        if not re.search(r"^AcctGatherEnergyType\s*=\s*acct_gather_energy/(?!none)", configured, re.MULTILINE):
            return ""
        deadline = time.monotonic() + _FILE_SECONDS
        while time.monotonic() < deadline:
            asked = ("--noheader", "--parsable2", "--allocations", f"--jobs={job}")
            said, _ = call("sacct", *asked, "--format=ElapsedRaw,ConsumedEnergyRaw,State")
            line, _, state = said.strip().rpartition("|")
            if state == "COMPLETED":
                return line
            time.sleep(_POLL)
    except SlurmError:
        pass
    return ""


def _wait(job: str) -> dict[str, str]:
    """What Slurm says of the job once it has ended."""
    while True:
        said, _ = call("scontrol", "-o", "show", "job", job, environment={"SLURM_TIME_FORMAT": "%s"})
        facts = dict(word.split("=", 1) for word in said.split() if "=" in word)
        if facts.get("JobState") not in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"):
            return facts
        time.sleep(_POLL)


def _measured(facts: dict[str, str]) -> Measured:
    try:
        wait: float | None = float(facts["StartTime"]) - float(facts["SubmitTime"])
    except (KeyError, ValueError):
        wait = None
    nodes = re.match(r"\d+", facts.get("NumNodes", "1"))
    return Measured(None, "", wait if wait is not None and wait >= 0 else None, int(nodes[0]) if nodes else 1)


def _said(output: Path, job: str) -> str:
    """A shared file system may show the file some seconds late."""
    deadline = time.monotonic() + _FILE_SECONDS
    while True:
        with suppress(OSError):
            text = output.read_text(errors="replace")
            if " run " in text or time.monotonic() > deadline:
                return text
        if time.monotonic() > deadline:
            raise SlurmError(f"job {job} wrote nothing to {output}; is the application's folder shared with the nodes?")
        time.sleep(_POLL / 5)
