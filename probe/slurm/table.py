# SPDX-License-Identifier: Apache-2.0
"""The table that the hooks in Slurm read: one line per probe, sorted by bytes, so that a hook reads only a few of them.

    probe-slurm-table 1 WRITTEN DEFAULT-PARTITION
    KEY <tab> PREDICTION <tab> SECONDS <tab> LOW <tab> HIGH <tab> LIMITS <tab> PREFERENCES [<tab> WIDE]

KEY is `n:` and the probe's name, or `c:` and a command line that no other probe has. LIMITS are PARTITION=MINUTES,
PREFERENCES are PARTITION=FEATURE:CPUS:MEMORY, both parted by commas: a job that asks for no more than CPUS processors
and MEMORY MB can run on every node with FEATURE in PARTITION. WIDE stands where threads share the work, as
THREADS:PARTITION=MEMORY,...: each partition that has nodes with so many processors, and what all of these have in MB.
Other partitions would refuse the job. A hook from before there was this field leaves such jobs as they are.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from probe.schedulers.usable import Predicted
from probe.slurm.facts import SlurmFacts, SlurmNode
from probe.store.records import Candidate

TABLE_NAME: Final = "probe.table"
DEFAULT_MARGIN: Final = 1.2
LONGEST_LINE: Final = 1000
"""Bytes. The hooks read no more at once."""

_STEPS: Final = ((60, 5), (6 * 60, 15), (24 * 60, 60), (math.inf, 240))
"""Limits up to so many minutes are multiples of so many: each different limit is one more group to the scheduler."""

_FASTER: Final = 0.95
"""A feature is preferred where its slowest node takes less than this share of the median of those without it."""


@dataclass(frozen=True)
class Advice:
    """What is known for one probe. limits: minutes by partition. preferences: (feature, CPUs, MB) by partition.

    missing: by partition, the nodes that no prediction says anything about, so that there can be no limit. threads:
    that share the work; nodes with fewer processors are no concern of its jobs. wide: MB by partition that has others.
    """

    keys: tuple[str, ...]
    prediction: int
    seconds: float
    low: float
    high: float
    limits: Mapping[str, int]
    preferences: Mapping[str, tuple[str, int, int]]
    missing: Mapping[str, tuple[str, ...]]
    threads: int = 1
    wide: Mapping[str, int] = field(default_factory=dict)


def limit_minutes(high: float, margin: float = DEFAULT_MARGIN) -> int:
    """Time limit, in minutes, from the upper end of an interval in seconds: rounded up to a step."""
    wanted = max(1.0, high * margin / 60)
    step = next(step for most, step in _STEPS if wanted <= most)
    return math.ceil(wanted / step - 1e-9) * step


def advise(
    predicted: Sequence[Predicted], facts: SlurmFacts, *, margin: float = DEFAULT_MARGIN, commands: bool = False
) -> list[Advice]:
    """For every probe with a prediction on a node of this cluster. `commands`: by its command line, too."""
    names = Counter(item.probe.name for item in predicted)
    lines = Counter(line for item in predicted for line in _lines(item))
    found = []
    for item in predicted:
        known = predictions_of(item.nodes, facts.nodes)
        if not known:
            continue
        # Two probes of one name, or of one command with other threads or input: nobody could say which a job means.
        keys = [f"n:{item.probe.name}"] if names[item.probe.name] == 1 else [f"n:{item.probe.key}"]
        if commands:
            keys += [f"c:{line}" for line in sorted(_lines(item)) if lines[line] == 1]
        here = [candidate for candidate in item.nodes if candidate.node in known]
        first = here[0] if here else item.nodes[0]
        limits, preferences, missing, wide = {}, {}, {}, {}
        for partition in facts.partitions:
            nodes = [node for node in wide_enough(facts.nodes, item) if partition.name in node.partitions]
            if nodes:
                wide[partition.name] = min(node.memory for node in nodes)
            if unknown := tuple(node.name for node in nodes if node.name not in known):
                missing[partition.name] = unknown
            elif nodes:
                wanted = limit_minutes(max(known[node.name].high for node in nodes), margin)
                if partition.max_minutes is None or wanted <= partition.max_minutes:
                    limits[partition.name] = wanted
            if preference := _preference(nodes, known):
                preferences[partition.name] = preference
        found.append(
            Advice(
                tuple(keys), first.prediction, first.seconds, first.low, first.high, limits, preferences, missing,
                item.probe.threads, wide,
            )
        )  # fmt: skip
    return found


def _lines(predicted: Predicted) -> set[str]:
    """How a script may have the command of a probe: with and without quotes."""
    return {" ".join(predicted.probe.program), shlex.join(predicted.probe.program)}


def wide_enough(nodes: Sequence[SlurmNode], predicted: Predicted) -> list[SlurmNode]:
    """Nodes with a processor for each thread that shares the work."""
    return [node for node in nodes if node.cpus >= predicted.probe.threads]


def predictions_of(candidates: Sequence[Candidate], nodes: Sequence[SlurmNode]) -> dict[str, Candidate]:
    """The prediction for each node: its own, or the slowest of a node of its kind; without either it is left out."""
    own = {candidate.node: candidate for candidate in candidates}
    by_kind: dict[tuple[object, ...], Candidate] = {}
    for node in nodes:
        mine = own.get(node.name)
        if mine and (node.kind not in by_kind or mine.high > by_kind[node.kind].high):
            by_kind[node.kind] = mine
    found = {}
    for node in nodes:
        if prediction := own.get(node.name) or by_kind.get(node.kind):
            found[node.name] = prediction
    return found


def _preference(nodes: Sequence[SlurmNode], known: Mapping[str, Candidate]) -> tuple[str, int, int] | None:
    """The feature whose slowest node is the fastest, if that is clearly faster than the nodes without it."""
    best: tuple[float, int, str] | None = None
    for feature in sorted({feature for node in nodes for feature in node.features}):
        having = [node for node in nodes if feature in node.features]
        others = [known[node.name].seconds for node in nodes if feature not in node.features and node.name in known]
        if not others or any(node.name not in known for node in having):
            continue
        slowest = max(known[node.name].seconds for node in having)
        candidate = slowest, -len(having), feature
        if slowest < _FASTER * statistics.median(others) and (best is None or candidate < best):
            best = candidate
    if best is None:
        return None
    having = [node for node in nodes if best[2] in node.features]
    return best[2], min(node.cpus for node in having), min(node.memory for node in having)


def table_text(advice: Sequence[Advice], default_partition: str, written: float) -> tuple[str, list[str]]:
    """The table, and the keys that are too long for it."""
    lines: dict[bytes, str] = {}
    left_out = []
    for item in advice:
        limits = ",".join(f"{name}={minutes}" for name, minutes in sorted(item.limits.items()))
        wishes = ",".join(f"{name}={f}:{cpus}:{mb}" for name, (f, cpus, mb) in sorted(item.preferences.items()))
        wide = ",".join(f"{name}={memory}" for name, memory in sorted(item.wide.items()))
        threads = f"\t{item.threads}:{wide}" * (item.threads > 1)
        for key in item.keys:
            escaped = escape(key)
            line = (
                f"{escaped}\t{item.prediction}\t{item.seconds:.3f}\t{item.low:.3f}\t{item.high:.3f}\t{limits}\t{wishes}"
                f"{threads}"
            )
            if len(line.encode()) > LONGEST_LINE:
                left_out.append(key)
            else:
                lines[escaped.encode()] = line
    head = f"probe-slurm-table 1 {int(written)} {default_partition}".rstrip()
    return "\n".join([head, *(lines[key] for key in sorted(lines))]) + "\n", left_out


def escape(key: str) -> str:
    """Without the characters that part fields and lines."""
    return key.replace("%", "%25").replace("\t", "%09").replace("\n", "%0A").replace("\r", "%0D")
