# SPDX-License-Identifier: Apache-2.0
"""Probes made up through the data classes: as many phases, intervals and results as a test wants, in moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.formats.arrays import FloatArray
from probe.formats.interval_table import MEMBER, IntervalTable, encode
from probe.formats.manifest import (
    Boundaries,
    Manifest,
    NodeRecord,
    ProgramRecord,
    SelectionRecord,
    TimingRecord,
    TracingRecord,
)
from probe.formats.phase_record import CheckpointRecord, Events, InRun, PhaseRecord, Times
from probe.formats.reference import Reference
from reducer.archive import PhaseCheckpoint, write_probe

PAGE = 4096


def made_manifest(
    phases: int, intervals: int, *, argv: Sequence[str] = ("./solver", "--steps", "200"), **more: Any
) -> tuple[Manifest, IntervalTable]:
    """A manifest of a run of `intervals` in so many phases, and its table. Phase k is represented by interval k.

    `more`: values that it has instead, as `changed` takes them.
    """
    rng = np.random.default_rng(7)
    labels = np.concatenate([np.arange(phases), np.sort(rng.integers(0, phases, intervals - phases))])
    seconds = rng.uniform(0.04, 0.06, intervals)
    work = rng.uniform(1e6, 4e6, intervals)
    shares = np.bincount(labels, weights=seconds, minlength=phases) / seconds.sum()
    weights = np.bincount(labels, weights=work, minlength=phases) / work.sum()
    members = np.bincount(labels, minlength=phases)
    begins = np.concatenate([[0.0], np.cumsum(seconds)])
    records = tuple(
        PhaseRecord(
            id=k, representative=k, intervals=int(members[k]), weight=float(weights[k]), time_share=float(shares[k]),
            spread=0.02, work=float(work[k]), warmup=1,
            in_run=InRun(float(begins[k]), float(seconds[k]), float(seconds[k])), events=Events(0, 0, 0),
            checkpoint=CheckpointRecord(100, 40, 30), criu=_times(seconds[k] * np.array([1.01, 1.0, 1.02])),
        )
        for k in range(phases)
    )  # fmt: skip
    whole = float(seconds.sum())
    runs = (whole, whole * 1.01, whole * 0.995)
    manifest = Manifest(
        program=ProgramRecord(tuple(argv), "/work/solver", "/work", "/dev/null", "x86-64-v3", ("avx2",), ()),
        tracing=TracingRecord("native", "seconds", 0.05, whole, sites=100, removed_sites=1, install_seconds=0.1),
        timing=TimingRecord(intervals, whole, whole, Boundaries(intervals - 1)),
        reference_node=NodeRecord("ref", "Example CPU 1", 8, "6.1.0", 0.1),
        reference=Reference(runs, runs, 0.0, (whole, whole), "cpu", runs[:2], runs[:2]),
        work_unit="counted instructions", total_work=float(work.sum()),
        selection=SelectionRecord(seed=1, dropped_time_share=0.0, error=0.004, held_out_error=0.02),
        phases=records, raw_bytes=10**6,
    )  # fmt: skip
    points = rng.normal(size=(phases, 4))[labels] + 0.05 * rng.normal(size=(intervals, 4))
    table = IntervalTable(labels, seconds, seconds, work, points, np.array([0.6, 0.2, 0.1, 0.05]))
    return changed(manifest, **more), table


def _times(seconds: FloatArray) -> Times:
    return Times(tuple(seconds.tolist()), tuple(seconds.tolist()), 0.05)


def changed(record: Any, **values: Any) -> Any:
    """The record with other values; `timing__seconds` is the value `seconds` of its `timing`."""
    for name, value in values.items():
        outer, _, inner = name.partition("__")
        record = replace(record, **{outer: changed(getattr(record, outer), **{inner: value}) if inner else value})
    return record


def made_probe(path: Path, manifest: Manifest, table: IntervalTable | None = None, **data: bytes) -> Path:
    """A probe file of this manifest; every phase has one page of its own. Its checkpoints cannot be restored."""
    checkpoints = []
    for phase in manifest.phases:
        folder = path.parent / f"{path.stem}-images" / str(phase.id)
        folder.mkdir(parents=True)
        (folder / "core-1.img").write_bytes(b"core")
        (folder / "pages-1.img").write_bytes(np.full(PAGE // 4, phase.id + 1, dtype=np.uint32).tobytes())
        checkpoints.append(PhaseCheckpoint(phase.id, folder))
    members = {**data, **({MEMBER: encode(table)} if table is not None else {})}
    write_probe(path, manifest.to_json(), checkpoints, data=members)
    return path


def made_result(
    manifest: Manifest, node: str, factor: float = 1.0, *, probe_id: str | None = "", **more: Any
) -> dict[str, Any]:
    """What `probe run --json` would print on a node that takes `factor` times as long; `more` replaces keys.

    probe_id: empty for that of the manifest, None for a result from before there were any.
    """
    seconds = manifest.reference.seconds * factor
    result: dict[str, Any] = {
        "format_version": 1,
        "probe": "solver.probe",
        "probe_id": manifest.id if probe_id == "" else probe_id,
        "program": list(manifest.program.argv),
        "node": {"name": node, "cpu": "Example CPU 2", "cores": 16, "kernel": "6.1.0", "load": 0.1},
        "threads": manifest.threads,
        "yardsticks": {"node": {}, "reference": {}},
        "clock": "cpu",
        "prediction": {"seconds": seconds, "low": seconds * 0.95, "high": seconds * 1.06, "coverage": 1.0},
        "undisturbed": {"seconds": seconds * 0.99, "low": seconds * 0.96, "high": seconds * 1.02},
        "estimators": {"calibrated": seconds, "direct": seconds * 1.02, "strube": None, "combined": seconds},
        "variances": {
            "repeats_candidate": 1e-5, "repeats_reference": 1e-5, "reference_runs": 4e-5, "within_strata": 3e-5,
            "uncovered": 0.0, "outside": 0.0, "minimum": 4e-6, "load": 0.0, "direct": 0.0,
        },
        "degrees_of_freedom": 8.0,
        "disturbed": {},
        "target_error": {},
        "phases": [
            {
                "id": p.id, "weight": p.weight, "time_share": p.time_share, "t_ref": p.in_run.cpu,
                "t_cand": p.in_run.cpu * factor * (1 + 0.1 * (p.id % 3 - 1)), "status": "ok", "failure": "",
                "restorer": "direct", "kernel": {"ref": 0.01, "ref_error": 0.002, "cand": 0.012, "cand_error": 0.003},
                "repeats": [],
            }
            for p in manifest.phases
        ],
        "warnings": [],
    }  # fmt: skip
    if probe_id is None:
        del result["probe_id"]
    return {**result, **more}


def without_times(result: Mapping[str, Any], phases: Sequence[int], reason: str) -> dict[str, Any]:
    """The same result with these phases failed."""
    lost = [
        {**p, "t_cand": None, "status": "failed", "failure": reason} if p["id"] in phases else p
        for p in result["phases"]
    ]
    return {**result, "phases": lost}
