# SPDX-License-Identifier: Apache-2.0
"""Resource profiles and emulations in the store: apart from predictions, and never in their place.

An emulation is of a command, a probe of a program with its input. The two are joined by the words of the command.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from checkpoint import strict_json
from checkpoint.errors import ProbeError
from checkpoint.foreign_file import finite
from probe.formats.result import EMULATION_VERSION, METHOD
from probe.store.importing import Imported, checked_count, checked_node, checked_text, known_digests, store_nodes
from probe.store.opening import Store
from probe.store.reading import STALE
from probe.store.records import Observed, Row, StoredNode, StoredProbe, digest, iso
from probe.store.schema import emulations, nodes, observations, probes, usages

if TYPE_CHECKING:
    from probe.emulation.metrics import Spread
    from probe.emulation.usage import Usage

LEAST_RUNS = 10
"""Observed runs that emulations must have foretold before an interval is given for this method."""

_SCALED = 0.01
"""What an emulation may differ from its profile by rounding."""

_MOST_THREADS = (1 << 31) - 1


@dataclass(frozen=True)
class StoredEmulation(Row):
    """The newest emulation of a command on a node. `low` and `high`: 95 %, None as long as nothing calibrates them.

    `stale` says why not to use it, or "".
    """

    name: str
    program: tuple[str, ...]
    tags: dict[str, str]
    node: str
    cluster: str
    made_at: float
    seconds: float
    low: float | None
    high: float | None
    kernel: str
    equal: str
    threads: int
    stale: str

    def to_json(self) -> dict[str, Any]:
        """As in docs/store.md."""
        tags = [{"name": name, "value": value} for name, value in sorted(self.tags.items())]
        return {**asdict(self), "program": list(self.program), "tags": tags, "made_at": iso(self.made_at)}


def is_emulation(value: Any) -> bool:
    """Whether this is what `probe emulate --json` prints."""
    return isinstance(value, Mapping) and value.get("method") == METHOD


# -- in


def import_emulations(
    store: Store, results: Sequence[Mapping[str, Any]], *, made_at: float, name: str | None = None,
    node: str | None = None, cluster: str | None = None,
) -> Imported:  # fmt: skip
    """Store results of `probe emulate --json`, all or none; those that are there already are left alone.

    Raises ProbeError for what is no such result, or was scaled; StoreBusy, StoreUnusable.
    """
    checked = [_checked(result, made_at, name, node, cluster) for result in results]
    with store.writing() as connection:
        known = known_digests(connection, emulations.c.digest, [row["digest"] for _, row in checked])
        fresh = {row["digest"]: (where, row) for where, row in checked if row["digest"] not in known}
        ids = store_nodes(connection, [(where, made_at) for where, _ in fresh.values()])
        first = 1 + (connection.execute(sa.select(sa.func.max(emulations.c.id))).scalar() or 0)
        rows = [
            {**row, "id": first + number, "node": ids[where["name"]]}
            for number, (where, row) in enumerate(fresh.values())
        ]
        if rows:
            connection.execute(emulations.insert(), rows)
    return Imported(tuple(row["id"] for row in rows), len(checked) - len(rows))


def _checked(
    result: Mapping[str, Any], made_at: float, name: str | None, node: str | None, cluster: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A node and a row, on the way in."""
    if result.get("format_version") != EMULATION_VERSION:
        raise ProbeError(
            f"not a result of `probe emulate --json`, version {EMULATION_VERSION} (format_version: "
            f"{result.get('format_version')!r}); give the file that it printed"
        )
    try:
        where = checked_node(result["node"], node, cluster)
        program = [checked_text(word) for word in result["program"]]
        tags = {checked_text(one["name"]): checked_text(one["value"]) for one in result["tags"]}
        seconds, kernel = finite(result["prediction"]["seconds"]), checked_text(result["kernel"])
        profile, threads = (
            checked_text(result["profile"]),
            checked_count(result["threads"], _MOST_THREADS, "threads", 1),
        )
        row = {
            "program": program, "tags": tags, "key": command_key(program), "made_at": made_at, "seconds": seconds,
            "name": name or profile.rsplit("/", 1)[-1].removesuffix(".usage"), "kernel": kernel,
            "equal": checked_text(result["equal"]), "threads": threads, "state": where["state"],
            "warnings": [checked_text(one) for one in result["warnings"]],
        }  # fmt: skip
        loaded = bool(result.get("load"))
        scaled = [one["name"] for one in result["totals"] if not _as_profiled(one)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ProbeError(f"not a whole result of `probe emulate --json`: {error!r}; emulate again") from error
    if scaled:
        raise ProbeError(f"an emulation with another {scaled[0]} than profiled stands for no run; leave --scale out")
    if loaded:
        raise ProbeError("an emulation under artificial load stands for no run; leave --load out")
    if not seconds > 0:
        raise ProbeError(f"an emulation of {seconds:g} s is none; emulate again")
    said = "\0".join((where["name"], row["key"], strict_json.dumps(tags), repr(seconds), kernel, row["equal"]))
    return where, {**row, "digest": digest(said)}


def _as_profiled(total: Mapping[str, Any]) -> bool:
    if total["profiled"] is None:
        return True
    profiled, wanted = finite(total["profiled"]), finite(total["wanted"])
    return abs(wanted - profiled) <= _SCALED * profiled + 1.0


def command_key(program: Sequence[str]) -> str:
    """What joins profiles, emulations and probes: a checksum of the command's words."""
    return digest(strict_json.dumps(list(program)))


def import_usages(store: Store, found: Sequence[Usage]) -> Imported:
    """Store the totals of resource profiles, all or none; those that are there already are left alone."""
    rows = [_usage_row(usage) for usage in found]
    with store.writing() as connection:
        known = known_digests(connection, usages.c.digest, [row["digest"] for row in rows])
        fresh = {row["digest"]: row for row in rows if row["digest"] not in known}
        first = 1 + (connection.execute(sa.select(sa.func.max(usages.c.id))).scalar() or 0)
        stored = [{**row, "id": first + number} for number, row in enumerate(fresh.values())]
        if stored:
            connection.execute(usages.insert(), stored)
    return Imported(tuple(row["id"] for row in stored), len(rows) - len(stored))


def _usage_row(usage: Usage) -> dict[str, Any]:
    from probe.emulation.metrics import key_of, metrics

    command, tags = key_of(usage)
    header = usage.header
    known = {m.name: [m.unit, m.total] for m in metrics(usage) if m.total is not None and math.isfinite(m.total)}
    totals = strict_json.dumps(known)
    try:
        words = [checked_text(word) for word in command]
        named = {checked_text(name): checked_text(value) for name, value in tags}
        node = checked_text(header.node.name)
    except ValueError as error:
        raise ProbeError(f"a profile that no database takes: {error}; profile the command again") from error
    said = "\0".join((node, repr(header.started), strict_json.dumps([words, named]), totals))
    return {
        "digest": digest(said), "key": command_key(words), "program": words, "tags": named, "node": node,
        "started": header.started, "totals": totals,
    }  # fmt: skip


# -- out


@dataclass(frozen=True)
class StoredUsages(Row):
    """Profiles of one command with one set of tags, on one node: their number, and the spread of each figure."""

    key: str
    program: tuple[str, ...]
    tags: dict[str, str]
    node: str
    runs: int
    metrics: tuple[Any, ...]

    def to_json(self) -> dict[str, Any]:
        """As in docs/store.md."""
        tags = [{"name": name, "value": value} for name, value in sorted(self.tags.items())]
        return {**asdict(self), "program": list(self.program), "tags": tags, "metrics": list(map(asdict, self.metrics))}


def stored_usages(store: Store) -> list[StoredUsages]:
    """By command, tags and node."""
    with store.reading() as connection:
        rows = connection.execute(usages.select().order_by(usages.c.started, usages.c.id)).all()
        grouped: dict[tuple[str, str, str], list[Any]] = {}
        for row in rows:
            grouped.setdefault((row.key, strict_json.dumps(row.tags, sort_keys=True), row.node), []).append(row)
        return [
            StoredUsages(key, tuple(many[0].program), dict(many[0].tags), node, len(many), tuple(_spreads(many)))
            for (key, _, node), many in grouped.items()
        ]


def _spreads(rows: Sequence[Any]) -> list[Spread]:
    # It loads numpy, which who reads the rest of the store shall not wait for.
    from probe.emulation.metrics import spreads_of

    read = [strict_json.loads(row.totals) for row in rows]
    return spreads_of([{name: (str(unit), finite(total)) for name, (unit, total) in one.items()} for one in read])


def stored_emulations(store: Store, *, program: Sequence[str] | None = None, name: str = "") -> list[StoredEmulation]:
    """The newest of each command, tags, kernel and node, of a program's words or of a name; the fastest first."""
    wanted = emulations.c.key == command_key(program) if program is not None else emulations.c.name == name
    query = (
        sa.select(emulations, nodes.c.name.label("node_name"), nodes.c.cluster, nodes.c.state.label("now"))
        .join_from(emulations, nodes, emulations.c.node == nodes.c.id)
        .where(wanted)
        .order_by(emulations.c.made_at, emulations.c.id)
    )
    ratios = [one.ratio for one in foretold(store) if one.ratio is not None]
    newest: dict[Any, StoredEmulation] = {}
    with store.reading() as connection:
        for row in connection.execute(query):
            low, high = interval_of(row.seconds, ratios) or (None, None)
            stored = StoredEmulation(
                row.name, tuple(row.program), dict(row.tags), row.node_name, row.cluster, row.made_at, row.seconds,
                low, high, row.kernel, row.equal, row.threads, "" if row.state == row.now else STALE,
            )  # fmt: skip
            newest[stored.program, tuple(sorted(stored.tags.items())), stored.node, stored.kernel] = stored
    return sorted(newest.values(), key=lambda one: (one.seconds, one.node))


def interval_of(seconds: float, ratios: Sequence[float]) -> tuple[float, float] | None:
    """Ends of the 95 % interval of one more run, from observed over emulated times; None of fewer than LEAST_RUNS.

    That of one more value of a normal distribution, of the ratios' logarithms. It always holds the emulated time.
    """
    if len(ratios) < LEAST_RUNS:
        return None
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    middle, spread = statistics.fmean(logs), statistics.stdev(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * spread * math.sqrt(1 + 1 / len(logs))
    return seconds * min(1.0, math.exp(middle - half)), seconds * max(1.0, math.exp(middle + half))


def foretold(store: Store, *, probe: StoredProbe | None = None, node: StoredNode | None = None) -> list[Observed]:
    """Observed runs of programs that were emulated on the same node before, each with the newest such emulation."""
    query = (
        sa.select(observations, probes.c.name.label("probe_name"), probes.c.program, nodes.c.name.label("on"))
        .join_from(observations, probes, observations.c.probe == probes.c.id)
        .join(nodes, observations.c.node == nodes.c.id)
        .order_by(observations.c.observed_at, observations.c.id)
    )
    if probe is not None:
        query = query.where(observations.c.probe == probe.id)
    if node is not None:
        query = query.where(observations.c.node == node.id)
    with store.reading() as connection:
        seen = connection.execute(query).all()
        made: dict[tuple[str, int], list[Any]] = {}
        for row in connection.execute(emulations.select().order_by(emulations.c.made_at, emulations.c.id)):
            made.setdefault((row.key, row.node), []).append(row)
        pairs = [(row, _before(made.get((command_key(row.program), row.node), []), row.observed_at)) for row in seen]
        return [
            Observed(row.probe_name, row.on, row.observed_at, row.seconds, row.source, None, said, None, None)
            for row, said in pairs
            if said is not None
        ]


def _before(rows: Sequence[Any], moment: float) -> float | None:
    """Seconds of the newest emulation that is not newer than this, None without any."""
    return next((row.seconds for row in reversed(rows) if row.made_at <= moment), None)
