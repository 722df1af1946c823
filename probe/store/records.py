# SPDX-License-Identifier: Apache-2.0
"""Records that the store gives out. Times of day are seconds since 1970 in UTC, durations seconds."""

from __future__ import annotations

import datetime
import functools
import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from checkpoint import strict_json


@dataclass(frozen=True)
class StoredProbe:
    """One program with one input. `key` names it, and so do its first digits; `inputs` is a SHA-256, "" if unknown."""

    id: int
    key: str
    name: str
    program: tuple[str, ...]
    inputs: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class StoredNode:
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
class StoredCluster:
    """Throughputs in bytes per second, None where not measured; `latency` in seconds; `home`: the master is there."""

    name: str
    home: bool
    local_network: float | None
    inbound: float | None
    outbound: float | None
    latency: float


@dataclass(frozen=True)
class StoredPrediction:
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
class Candidate:
    """A node and its newest prediction of one probe. `stale` says why it must not be used, "" if it may be."""

    node: str
    cluster: str
    features: tuple[str, ...]
    workers: int
    prediction: int
    made_at: float
    seconds: float
    low: float
    high: float
    stale: str


@dataclass(frozen=True)
class Observed:
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
def probe_key(program: tuple[str, ...], inputs: str) -> str:
    """What makes a probe one: the command line, and the checksum of its input."""
    return digest(strict_json.dumps([program, inputs]))


@functools.lru_cache(maxsize=4096)
def node_state(cpu: str, kernel: str) -> str:
    """Checksum of what a prediction depends on: when the node's changes, the prediction is stale."""
    return digest(strict_json.dumps([cpu, kernel]))


def iso(seconds: float) -> str:
    """Time of day as ISO 8601 in UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
