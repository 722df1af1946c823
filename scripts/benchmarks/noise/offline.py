# SPDX-License-Identifier: Apache-2.0
"""Predict from a record again, without a machine: as it was said, or as estimators did before runs were stamped."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.noise.recorded import Record
from checkpoint.restore.criu_restore import RegionTime
from probe.candidates.result import predict_from
from probe.formats.manifest import Manifest
from probe.node.measuring import MeasuredPhase
from probe.prediction.estimators import Prediction


def predicted(record: Record, *, stamped: bool = True) -> Prediction:
    """From the repeats and reference runs of a record. `stamped`: with the levels of stamped runs, as now; else by the
    calibrated estimate from medians alone. Raises as `predict_from`."""
    manifest = Manifest.from_json(record["manifest"])
    if not stamped:
        unstamped = replace(manifest.reference, voted=(), voted_error=(), voted_noise=())
        manifest = replace(manifest, reference=unstamped)
    measured = [
        MeasuredPhase(int(phase), tuple(RegionTime(wall, cpu, 0.0, 0.0) for wall, cpu in times), restorer=restorer)
        for phase, times in record["candidate"].items()
        for restorer in [record["restorers"][phase]]
    ]
    return predict_from(manifest, measured)
