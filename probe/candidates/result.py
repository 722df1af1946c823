# SPDX-License-Identifier: Apache-2.0
"""The result of running a probe on a node: repeats of every phase in, prediction and published JSON out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from checkpoint.errors import NoPrediction, PhaseFailed
from probe.formats.kernel_time import kernel_share
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, PhaseRecord
from probe.formats.result import RESULT_VERSION
from probe.node.measuring import MeasuredPhase
from probe.prediction.busyness import slowdowns, slowdowns_of_reference
from probe.prediction.estimators import PhaseTiming, Prediction, PredictionOptions, ReferenceRun, predict
from probe.prediction.limits import doubts_of_run, said_once
from probe.prediction.target_error import Narrowed

_LEAST_GRANTED = 0.001
"""Processors: a millisecond of each second is the least that a kernel grants."""

_UNPUBLISHED = ("switches", "delay", "warm_cpu")
"""What a repeat knows for us alone."""


@dataclass(frozen=True)
class RunResult:
    """One probe run on one node: the prediction, and the repeats of every phase that it rests on.

    `narrowed`: what was done for a wanted width of the interval, where one was given.
    """

    probe: str
    manifest: Manifest
    node: dict[str, Any]
    phases: tuple[MeasuredPhase, ...]
    prediction: Prediction
    narrowed: Narrowed | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the prediction less trustworthy, or the run less safe; each once."""
        node = (warning for measured in self.phases for warning in measured.warnings)
        wide = [self.narrowed.sentence()] if self.narrowed is not None and self.narrowed.limit else []
        told = [*self.prediction.to_json()["warnings"], *wide, *node, *self._throttled()]
        return said_once(told, self.manifest.warnings)

    def _throttled(self) -> Iterator[str]:
        """Of a program with one working thread: a node grants others whole processors, or refuses them."""
        granted = self.node.get("granted")
        if not isinstance(granted, (int, float)) or not _LEAST_GRANTED <= granted < 1:
            return
        if self.manifest.reference.clock == "cpu":
            yield (
                f"a control group of the node grants the time of {granted:g} processors: "
                f"by the wall clock the program takes up to {1 / granted:.4g} times as long there"
            )
        else:
            yield (
                f"a control group of the node grants the time of {granted:g} processors: "
                "repeats may have waited for their share, and the prediction has that in it"
            )

    def slowdowns(self) -> dict[str, dict[str, float]]:
        """How busy both nodes were by their yardsticks (probe/node/yardsticks.py); {} where there are none."""
        return {
            "node": slowdowns([t.yardsticks for measured in self.phases for t in measured.times]),
            "reference": slowdowns_of_reference(self.manifest),
        }

    def to_json(self) -> dict[str, Any]:
        """The published form (docs/json.md): keys other tools rely on are never renamed within a version."""
        by_id = {p.id: p for p in self.manifest.phases}
        clock = self.manifest.reference.clock
        phases = []
        for measured in self.phases:
            record = by_id[measured.phase]
            candidate = [t.cpu if clock == "cpu" else t.wall for t in measured.times]
            phases.append(
                {
                    "id": record.id,
                    "weight": record.weight,
                    "time_share": record.time_share,
                    "t_ref": _median(record.restored(measured.restorer).by(clock)),
                    "t_cand": _median(candidate),
                    "status": "ok" if measured.times else "failed",
                    "failure": measured.failure,
                    "restorer": measured.restorer,
                    "kernel": _in_kernel(record, measured),
                    "repeats": [{k: v for k, v in vars(t).items() if k not in _UNPUBLISHED} for t in measured.times],
                }
            )
        said = self.prediction.to_json()
        return {
            "format_version": RESULT_VERSION,
            "probe": self.probe,
            "probe_id": self.manifest.id,
            "program": list(self.manifest.program.argv),
            "node": self.node,
            "threads": self.manifest.threads,
            "yardsticks": self.slowdowns(),
            "clock": clock,
            **{
                k: said[k]
                for k in ("prediction", "undisturbed", "estimators", "variances", "degrees_of_freedom", "disturbed")
            },
            "target_error": self.narrowed.to_json() if self.narrowed is not None else {},
            "phases": phases,
            "warnings": list(self.warnings),
        }


def _in_kernel(record: PhaseRecord, measured: MeasuredPhase) -> dict[str, float | None]:
    """Shares of the region's CPU time in the kernel, on the reference node and here, with their standard errors."""
    ref = record.restored(measured.restorer).in_kernel()
    cand = kernel_share([t.kernel for t in measured.times], [t.cpu for t in measured.times])
    return {
        "ref": ref.share if ref else None,
        "ref_error": ref.error if ref else None,
        "cand": cand.share if cand else None,
        "cand_error": cand.error if cand else None,
    }


def _median(values: tuple[float, ...] | list[float]) -> float | None:
    import statistics

    return statistics.median(values) if values else None


def _predicted(manifest: Manifest, measured: list[MeasuredPhase], min_coverage: float | None) -> Prediction:
    try:
        return predict_from(manifest, measured, min_coverage=min_coverage)
    except NoPrediction as error:
        failed = [m.failure for m in measured if m.failure]
        if not failed:
            raise
        raise PhaseFailed(f"{failed[0]} ({len(failed)} of {len(measured)} phases failed: {error})") from error


def check_coverage(manifest: Manifest, min_coverage: float | None) -> None:
    """Raise NoPrediction where the probe as such holds less of the run than is asked for: before anything is run."""
    need = PredictionOptions().min_coverage if min_coverage is None else min_coverage
    have = manifest.coverage
    if have < need:
        why = f" (it was trimmed to {len(manifest.phases)} of {manifest.trimmed_from} phases)" * bool(
            manifest.trimmed_from
        )
        raise NoPrediction(
            f"the probe covers {have:.1%} of the run{why}, {need:.1%} are needed; use one with more phases, or accept "
            f"a wider interval with --min-coverage {rounded_down(have):g}"
        )


def rounded_down(coverage: float) -> float:
    """A coverage that this one reaches, in full percent."""
    return math.floor(coverage * 100) / 100


def reference_of(manifest: Manifest) -> ReferenceRun:
    """The reference node's full runs, as the estimators want them."""
    full = manifest.reference
    # Older probes are predicted as they were when they were made. Without work there is no direct estimate to judge:
    # too little of the run was counted.
    judged = full.level is not None and manifest.total_work > 0
    return ReferenceRun(
        runs=full.runs,
        total_work=manifest.total_work,
        noise=manifest.noise,
        work_unit=manifest.work_unit,
        voted=full.level,
        selection_error=manifest.selection.held_out_error if judged else None,
        outside=manifest.outside.share if manifest.outside is not None else 0.0,
        all_runs=full.all_runs,
    )


def predict_from(manifest: Manifest, measured: list[MeasuredPhase], *, min_coverage: float | None = None) -> Prediction:
    """The prediction from this node's repeats and the reference node's. Raises NoPrediction, Unpredictable."""
    by_id = {m.phase: m for m in measured}
    timings = []
    for phase in manifest.phases:
        result = by_id.get(phase.id)
        times = result.times if result else ()
        ref = phase.restored(result.restorer if result else CRIU)
        timings.append(
            PhaseTiming(
                id=phase.id,
                weight=phase.weight,
                time_share=phase.time_share,
                work=phase.work,
                t_ref=ref.wall,
                t_cand=tuple(t.wall for t in times),
                t_run=phase.in_run.by(manifest.reference.clock),
                spread=phase.spread,
                status="ok" if times else "failed",
                cpu_ref=ref.cpu,
                cpu_cand=tuple(t.cpu for t in times),
                clock=manifest.reference.clock,
                stratum=phase.stratum,
            )
        )
    reference = reference_of(manifest)
    prediction = predict(reference, timings, min_coverage=min_coverage)
    doubts = doubts_of_run(manifest, measured, prediction.seconds)
    return replace(prediction, warnings=(*prediction.warnings, *doubts))
