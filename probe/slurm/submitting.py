# SPDX-License-Identifier: Apache-2.0
"""sbatch with predictions: the choice of nodes that ends soonest, queue included."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checkpoint.errors import NodeUnfit, NoPrediction, SlurmError
from probe.schedulers.usable import Predicted
from probe.slurm.facts import SlurmFacts, SlurmNode, call
from probe.slurm.sbatch import SbatchCall
from probe.slurm.table import DEFAULT_MARGIN, limit_minutes, predictions_of, wide_enough
from probe.store.records import Candidate

_START = re.compile(r"to start at (\S+) using")
_STANDARD_TIMES = {"SLURM_TIME_FORMAT": "standard"}
_MOST_NODES = 20
CPUS = "cpus-per-task"


@dataclass(frozen=True)
class Choice:
    """Nodes to ask for, by `options` of sbatch. seconds, high: of the slowest of them. minutes: the limit.

    threads: that share the work of a task, each of which gets a processor.
    starts: seconds since 1970 when Slurm would start the job; None where it refuses, then `reason` says why.
    """

    name: str
    options: tuple[str, ...]
    seconds: float
    high: float
    prediction: int
    minutes: int
    threads: int = 1
    starts: float | None = None
    reason: str = ""

    @property
    def ends(self) -> float | None:
        """Seconds since 1970 of the end, as predicted."""
        return None if self.starts is None else self.starts + self.seconds


def choices(
    predicted: Predicted,
    facts: SlurmFacts,
    asked: Mapping[str, str],
    *,
    by_node: bool = False,
    margin: float = DEFAULT_MARGIN,
) -> list[Choice]:
    """What could be asked for: each feature that some nodes have and others have not, and no restriction; or each node.

    asked: options of sbatch that the user gives, by long name. Where these choose nodes, nothing else is offered.
    Raises NoPrediction where nothing is known of any node of the partition, NodeUnfit where none has as many processors
    as threads share the work, or the user asks for fewer.
    """
    known = predictions_of(predicted.nodes, facts.nodes)
    wanted = (asked.get("partition") or facts.default_partition).split(",")
    nodes = [node for node in wide_enough(facts.nodes, predicted) if set(node.partitions) & set(wanted)]
    _refuse_too_few(predicted, nodes, wanted, asked)
    covered, threads = [node for node in nodes if node.name in known], predicted.probe.threads
    if not covered:
        raise NoPrediction(
            f"{predicted.probe.name}: no prediction for any node of partition {','.join(wanted)}; run the probe there "
            "(probe run --slurm)"
        )
    if any(name in asked for name in ("nodelist", "nodefile", "constraint", "prefer", "batch")):
        return [_choice("as asked for", (), _of(covered, known), margin, threads)]
    found = []
    if by_node:
        ready = [node for node in covered if node.available]
        for node in sorted(ready, key=lambda n: known[n.name].seconds)[:_MOST_NODES]:
            found.append(_choice(node.name, ("--nodelist", node.name), [known[node.name]], margin, threads))
        return found
    for feature in sorted({feature for node in nodes for feature in node.features}):
        having = [node for node in nodes if feature in node.features]
        if len(having) < len(nodes) and all(node.name in known for node in having):
            found.append(_choice(feature, ("--constraint", feature), _of(having, known), margin, threads))
    if len(covered) == len(nodes):
        found.append(_choice("any node", (), _of(nodes, known), margin, threads))
    if not found:
        raise NoPrediction(
            f"{predicted.probe.name}: no feature has predictions for all its nodes in partition {','.join(wanted)}; "
            "try --by-node, or run the probe on more nodes"
        )
    return found


def _refuse_too_few(
    predicted: Predicted, nodes: Sequence[SlurmNode], wanted: Sequence[str], asked: Mapping[str, str]
) -> None:
    threads, partition = predicted.probe.threads, ",".join(wanted)
    if not nodes and threads > 1:
        raise NodeUnfit(
            f"{predicted.probe.name}: {threads} threads, but no node of partition {partition} has as many processors; "
            "name another partition, or build the probe with fewer threads"
        )
    given = asked.get(CPUS, "")
    if given.isdecimal() and int(given) < threads:
        raise NodeUnfit(
            f"{predicted.probe.name}: {threads} threads, but --{CPUS} is {given}: what is predicted would not hold; "
            "leave it out, or build the probe with fewer threads"
        )


def _of(nodes: Sequence[SlurmNode], known: Mapping[str, Candidate]) -> list[Candidate]:
    return [known[node.name] for node in nodes]


def _choice(
    name: str, options: tuple[str, ...], predictions: Sequence[Candidate], margin: float, threads: int
) -> Choice:
    slowest = max(predictions, key=lambda prediction: prediction.seconds)
    high = max(prediction.high for prediction in predictions)
    return Choice(name, options, slowest.seconds, high, slowest.prediction, limit_minutes(high, margin), threads)


def with_starts(options: Sequence[Choice], wanted: SbatchCall) -> list[Choice]:
    """Ask Slurm when each would start (sbatch --test-only): soonest end first, those it refuses last.

    Raises SlurmError where Slurm refuses all.
    """
    asked = []
    for choice in options:
        command = ("sbatch", "--test-only", *_own(choice, wanted), *wanted.arguments)
        try:
            _, said = call(*command, environment=_STANDARD_TIMES, given=wanted.standard_input)
        except SlurmError as error:
            asked.append(replace(choice, reason=str(error)))
            continue
        found = _START.search(said)
        if found is None:
            asked.append(replace(choice, reason=f"sbatch did not say when it would start: {said.strip()[:200]}"))
        else:
            starts = datetime.datetime.fromisoformat(found[1]).timestamp()
            asked.append(replace(choice, starts=max(starts, time.time())))
    if all(choice.starts is None for choice in asked):
        raise SlurmError(asked[0].reason)
    return sorted(asked, key=lambda c: (c.ends is None, c.ends or 0.0, c.seconds))


def submit(choice: Choice, probe: str, wanted: SbatchCall) -> str:
    """Submit it; what sbatch printed. Raises SlurmError."""
    note = () if "comment" in wanted.asked else ("--comment", f"probe={probe} prediction={choice.prediction}")
    said, _ = call("sbatch", *_own(choice, wanted), *note, *wanted.arguments, given=wanted.standard_input)
    return said


def _own(choice: Choice, wanted: SbatchCall) -> tuple[str, ...]:
    """Options for this choice. What the user gives, in whatever way, is left alone: a time limit, processors."""
    limit = () if "time" in wanted.asked else ("--time", str(choice.minutes))
    processors = () if choice.threads == 1 or CPUS in wanted.asked else (f"--{CPUS}", str(choice.threads))
    return (*choice.options, *processors, *limit)
