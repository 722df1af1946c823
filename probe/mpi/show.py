# SPDX-License-Identifier: Apache-2.0
"""Description of a recording: its ranks, their calls, computing and waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from probe.mpi.library.calls import names
from probe.mpi.parts import Inbox, check_inbox
from probe.mpi.recording import RankRun, Recording
from probe.mpi.trace import RankCalls, read_calls


def recording_json(recording: Recording) -> dict[str, Any]:
    """What `probe mpi record --json` and `probe mpi show --json` print (docs/json.md). Raises ProbeFileDamaged."""
    return {
        "recording": str(recording.folder),
        "command": list(recording.command),
        "library": recording.library,
        "seconds": recording.seconds,
        "processors": recording.processors,
        "warnings": list(recording.warnings),
        "ranks": [_rank(run, calls, inbox) for run, calls, inbox in _read(recording)],
    }


def _read(recording: Recording) -> Iterator[tuple[RankRun, RankCalls, Inbox | None]]:
    for run in recording.ranks:
        inbox = check_inbox(recording.folder, run.rank) if run.kept else None
        yield run, read_calls(recording.folder, run.rank), inbox


def _rank(run: RankRun, calls: RankCalls, inbox: Inbox | None) -> dict[str, Any]:
    counted = Counter(calls.calls["function"].tolist())
    return {
        "rank": run.rank,
        "program": run.program,
        "host": run.host,
        "computing": calls.computing,
        "inside": calls.inside,
        "sent": calls.sent,
        "calls": [{"name": f"MPI_{names()[number]}", "count": count} for number, count in sorted(counted.items())],
        "answers": inbox.answers if inbox else None,
        "bytes": inbox.size if inbox else None,
    }


def recording_lines(recording: Recording) -> Iterator[str]:
    """The same for people."""
    yield f"{recording.folder}: {len(recording.ranks)} ranks, {recording.seconds:.3f} s"
    yield f"command         {' '.join(recording.command)}"
    yield f"library         {recording.library}"
    if len(recording.hosts) > 1:
        yield f"hosts           {', '.join(recording.hosts)}"
    yield "rank   computing     in MPI   calls      sent   answers"
    for run, calls, inbox in _read(recording):
        answers = "none" if inbox is None else f"{inbox.answers} ({inbox.size / 1e6:.1f} MB)"
        yield (
            f"{run.rank:4}  {calls.computing:8.3f} s  {calls.inside:7.3f} s  {len(calls.calls):6}  "
            f"{calls.sent / 1e6:6.1f} MB  {answers}"
        )
    for warning in recording.warnings:
        yield f"warning: {warning}"
