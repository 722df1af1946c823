# SPDX-License-Identifier: Apache-2.0
"""Reading what `probe run --json` printed, in all its forms, and refusing what is of another probe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import finite, read_foreign_json
from probe.formats.arrays import FloatArray
from probe.formats.manifest import Manifest
from probe.formats.result import RESULT_VERSION
from probe.prediction.variance import CAUSES
from probe.report.wording import command_line

_ESTIMATORS = ("calibrated", "direct", "strube")


@dataclass(frozen=True)
class NodeResult:
    """A prediction for one node, seconds. Arrays have one value per phase of the probe's manifest, NaN for none.

    name: as the node was asked for; host: as it calls itself.
    estimators: NaN where one could not be formed. variances: by cause, as in `probe.prediction.estimators.Prediction`.
    failures: why a phase has no time here, by its id. foreign: phases measured that this probe does not have (trimmed).
    """

    name: str
    host: str
    cpu: str
    cores: int
    kernel: str
    seconds: float
    low: float
    high: float
    coverage: float
    estimators: Mapping[str, float]
    variances: Mapping[str, float]
    t_ref: FloatArray = field(repr=False)
    t_cand: FloatArray = field(repr=False)
    failures: Mapping[int, str] = field(default_factory=dict)
    foreign: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def half_width(self) -> float:
        """How far the interval reaches above the prediction, relative to it."""
        return self.high / self.seconds - 1.0


@dataclass(frozen=True)
class NodeWithout:
    """A node that gave no prediction, and why."""

    name: str
    reason: str


def read_results(paths: Sequence[Path], manifest: Manifest, probe: str) -> tuple[list[NodeResult], list[NodeWithout]]:
    """All results in the files, the fastest node first, and the nodes without one. `-` is standard input.

    `probe` is the probe's name in errors. Raises ProbeError for what is no result or of another probe, StorageError.
    """
    found: list[NodeResult] = []
    without: list[NodeWithout] = []
    positions = {phase.id: number for number, phase in enumerate(manifest.phases)}
    for path in paths:
        try:
            for name, value in _each(_read(path), without):
                _check_same(value, manifest, path, probe)
                found.append(_result(value, name, positions))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ProbeError(
                f"{path}: not a whole result of `probe run --json`: {error!r}; run the probe again"
            ) from error
    return sorted(_told_apart(found), key=lambda one: one.seconds), without


def _read(path: Path) -> Any:
    return read_foreign_json(path, "give the file that `probe run --json` printed")


def _each(value: Any, without: list[NodeWithout]) -> Iterable[tuple[str | None, Mapping[str, Any]]]:
    """(name, result) of every result in `value`; nodes that have none go to `without`."""
    if isinstance(value, list):
        for one in value:
            yield from _each(one, without)
    elif isinstance(value, Mapping) and isinstance(value.get("candidates"), list):
        for one in value["candidates"]:
            if one.get("result") is None:
                without.append(NodeWithout(str(one["name"]), str(one["reason"])))
            else:
                yield str(one["name"]), one["result"]
    elif isinstance(value, Mapping) and isinstance(value.get("results"), list):
        without += [NodeWithout(str(one["node"]), str(one["reason"])) for one in value.get("failures", ())]
        yield from ((None, one) for one in value["results"])
    else:
        yield None, value


def _check_same(value: Mapping[str, Any], manifest: Manifest, path: Path, probe: str) -> None:
    version = value.get("format_version") if isinstance(value, Mapping) else None
    if version != RESULT_VERSION:
        raise ProbeError(
            f"{path}: not a result of `probe run --json`, version {RESULT_VERSION} (format_version: {version!r}); give "
            "the file that it printed"
        )
    if (given := value.get("probe_id")) is None:
        # Results of earlier versions: no two builds share the shares of all their phases.
        shares = {phase.id: (phase.weight, phase.time_share) for phase in manifest.phases}
        said = {int(one["id"]): (one["weight"], one["time_share"]) for one in value["phases"]}
        same = list(value["program"]) == list(manifest.program.argv)
        same = same and bool(said.keys() & shares) and all(said[k] == shares[k] for k in said.keys() & shares)
        given = "none"
    else:
        same = given == manifest.id
    if not same:
        raise ProbeError(
            f"{path}: a result of another probe ({command_line([str(a) for a in value['program']], 80)}, id {given}), "
            f"not of {probe} (id {manifest.id}); give results of the same build, or leave it out"
        )


def _result(value: Mapping[str, Any], name: str | None, positions: Mapping[int, int]) -> NodeResult:
    node, said = value["node"], value["prediction"]
    seconds, low, high = (finite(said[key]) for key in ("seconds", "low", "high"))
    if not (0 < low <= seconds <= high < math.inf):
        raise ValueError(f"a prediction of {seconds:g} s with the interval {low:g} to {high:g} s")
    times = {key: np.full(len(positions), math.nan) for key in ("t_ref", "t_cand")}
    failures, foreign = {}, 0
    for phase in value["phases"]:
        at = positions.get(int(phase["id"]))
        if at is None:
            foreign += 1
            continue
        for key, values in times.items():
            if phase[key] is not None:
                values[at] = _positive(phase[key], key)
        if phase["status"] != "ok":
            failures[int(phase["id"])] = str(phase["failure"])
    return NodeResult(
        name=name or str(node["name"]),
        host=str(node["name"]),
        cpu=str(node["cpu"]),
        cores=int(node["cores"]),
        kernel=str(node["kernel"]),
        seconds=seconds,
        low=low,
        high=high,
        coverage=finite(said["coverage"]),
        estimators={key: _or_nan(value["estimators"].get(key)) for key in _ESTIMATORS},
        variances={key: max(0.0, finite(value["variances"].get(key, 0.0))) for key in CAUSES},
        failures=failures,
        foreign=foreign,
        warnings=tuple(str(warning) for warning in value["warnings"]),
        **times,
    )


def _positive(value: Any, what: str) -> float:
    number = finite(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{what} of {number:g} s")
    return number


def _or_nan(value: Any) -> float:
    return math.nan if value is None else _positive(value, "an estimate")


def _told_apart(found: Sequence[NodeResult]) -> list[NodeResult]:
    """The same, with a number behind each name that was there before: one node may have been asked twice."""
    seen: dict[str, int] = {}
    told = []
    for one in found:
        seen[one.name] = seen.get(one.name, 0) + 1
        told.append(replace(one, name=f"{one.name} ({seen[one.name]})") if seen[one.name] > 1 else one)
    return told
