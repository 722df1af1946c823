# SPDX-License-Identifier: Apache-2.0
"""Records that the store gives out. Times of day are seconds since 1970 in UTC, durations seconds."""

from __future__ import annotations

import datetime
import functools
import hashlib
import types
import typing
from dataclasses import asdict, dataclass
from typing import Any

from checkpoint import strict_json

_LATEST = 253402300799
"""The last second that a calendar of four digits has."""
_MOMENTS, _TIMES = {"made_at", "last_seen", "observed_at"}, {"seconds", "predicted"}
_LARGEST = 1e300
MOST_THREADS = 1024
"""That may share the work of a probe: more than any build lets."""


class Row:
    """What a row of the store says, checked: its file may be damaged or somebody else's, and SQLite keeps any value in
    any column. ValueError for one that nothing here wrote."""

    def __post_init__(self) -> None:
        for name, wanted in _kinds(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if not _fits(value, wanted) or not _sensible(name, value):
                raise ValueError(f"{name} is {str(value)[:40]!r}")


@functools.cache
def _kinds(of: type) -> tuple[tuple[str, Any], ...]:
    return tuple(typing.get_type_hints(of).items())


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a type as a record's field has it."""
    if wanted is float:
        return type(value) in (int, float) and -_LARGEST < value < _LARGEST
    if type(wanted) is type:
        return type(value) is wanted
    if isinstance(wanted, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(wanted))
    inner = typing.get_args(wanted)
    if typing.get_origin(wanted) is tuple:
        return type(value) is tuple and all(_fits(one, inner[0]) for one in value)
    if typing.get_origin(wanted) is dict:
        return type(value) is dict and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    return wanted is Any


def _sensible(name: str, value: Any) -> bool:
    if name in _MOMENTS:
        return bool(0 <= value <= _LATEST)
    return name not in _TIMES or value is None or bool(value > 0)


@dataclass(frozen=True)
class StoredProbe(Row):
    """One program with one input. `key` names it, and so do its first digits; `inputs` is a SHA-256, "" if unknown."""

    id: int
    key: str
    name: str
    program: tuple[str, ...]
    inputs: str
    tags: tuple[str, ...]

    @functools.cached_property
    def threads(self) -> int:
        """How many threads share the work, and so how many processors a node must have: the key tells."""
        counts = range(1, MOST_THREADS + 1)
        return next((n for n in counts if _key_of(self.program, self.inputs, n) == self.key), 1)


@dataclass(frozen=True)
class StoredNode(Row):
    """A node as last seen. `memory` in bytes or None; `workers`: how many tasks it runs at once."""

    id: int
    name: str
    cluster: str
    cpu: str
    cores: int
    memory: int | None
    kernel: str
    features: tuple[str, ...]
    workers: int
    last_seen: float


@dataclass(frozen=True)
class StoredCluster(Row):
    """Throughputs in bytes per second, None where not measured; `latency` in seconds; `home`: the master is there."""

    name: str
    home: bool
    local_network: float | None
    inbound: float | None
    outbound: float | None
    latency: float


@dataclass(frozen=True)
class StoredPrediction(Row):
    """One prediction. `phases` as in `probe run --json`, without the repeats; `stale` says why not to use it, or ""."""

    id: int
    probe: str
    probe_id: int
    node: str
    made_at: float
    seconds: float
    low: float
    high: float
    coverage: float
    clock: str
    file: str
    cpu: str
    kernel: str
    load: float
    estimators: dict[str, float | None]
    phases: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    stale: str

    def to_json(self) -> dict[str, Any]:
        """As in docs/store.md."""
        value = {**asdict(self), "made_at": iso(self.made_at)}
        # A number of this database alone; outside, a probe is its name or key.
        del value["probe_id"]
        return {**value, "phases": list(self.phases), "warnings": list(self.warnings)}


@dataclass(frozen=True)
class Candidate(Row):
    """A node and its newest prediction of one probe. `stale` says why it must not be used, "" if it may be.

    workers: runs of this probe at once. unfit: why the node cannot run it at all, "" if it can.
    """

    node: str
    cluster: str
    features: tuple[str, ...]
    cores: int
    workers: int
    prediction: int
    made_at: float
    seconds: float
    low: float
    high: float
    stale: str
    unfit: str

    @property
    def unusable(self) -> str:
        """Why neither this prediction nor the node may be used, "" if they may."""
        return self.unfit or self.stale


@dataclass(frozen=True)
class Observed(Row):
    """A run that happened, and what was predicted for it before; the last four are None without a prediction."""

    probe: str
    node: str
    observed_at: float
    seconds: float
    source: str
    prediction: int | None
    predicted: float | None
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float | None:
        """Observed over predicted: above 1, the prediction was too low."""
        return self.seconds / self.predicted if self.predicted else None

    @property
    def held(self) -> bool | None:
        """Whether the interval held it."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.seconds <= self.high

    def to_json(self) -> dict[str, Any]:
        """As in docs/store.md."""
        return {**asdict(self), "observed_at": iso(self.observed_at), "ratio": self.ratio, "held": self.held}


def digest(text: str) -> str:
    """128 bits of the SHA-256, as 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=4096)
def probe_key(program: tuple[str, ...], inputs: str, threads: int = 1) -> str:
    """What makes a probe one: the command line, the checksum of its input, and how many threads share the work."""
    return _key_of(program, inputs, threads)


def _key_of(program: tuple[str, ...], inputs: str, threads: int) -> str:
    return digest(strict_json.dumps([program, inputs, *([threads] if threads > 1 else [])]))


@functools.lru_cache(maxsize=4096)
def node_state(cpu: str, kernel: str) -> str:
    """Checksum of what a prediction depends on: when the node's changes, the prediction is stale."""
    return digest(strict_json.dumps([cpu, kernel]))


def iso(seconds: float) -> str:
    """Time of day as ISO 8601 in UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
