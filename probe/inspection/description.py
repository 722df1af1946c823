# SPDX-License-Identifier: Apache-2.0
"""Describe what is in a probe, as JSON and for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.formats.choices import SECONDS
from probe.formats.kernel_time import KernelShare
from probe.formats.manifest import CRIU, DIRECT, Manifest
from reducer.member_table import FORMAT_VERSION
from reducer.unpack import open_probe


def show(path: Path | str) -> dict[str, Any]:
    """The probe's description as JSON (docs/json.md). Raises ProbeFileDamaged, StorageError."""
    with open_probe(Path(path)) as archive:
        archive.verify()
        manifest = Manifest.from_json(archive.manifest)
        files = [{"path": f.path, "purpose": f.purpose, "size": f.size, "sha256": f.sha256} for f in archive.files]
        size = archive.size_bytes
    clock = manifest.reference.clock
    return {
        "format_version": FORMAT_VERSION,
        "id": manifest.id,
        "program": list(manifest.argv),
        "executable": manifest.executable,
        "tracer": manifest.tracer,
        "unit": manifest.unit,
        "interval": manifest.interval,
        "interval_seconds": manifest.interval if manifest.unit == SECONDS else None,
        "intervals": manifest.intervals,
        "isa": manifest.isa,
        "clock": clock,
        "reference_node": manifest.reference_node,
        "et_ref_seconds": manifest.reference.seconds,
        "et_ref_runs": list(manifest.reference.runs),
        "et_plain_environment_seconds": manifest.reference.plain_seconds,
        "noise": manifest.noise,
        "tracing_overhead": manifest.trace_seconds / manifest.reference.early_seconds,
        "sites": {"installed": manifest.sites, "removed": manifest.removed_sites, "seconds": manifest.install_seconds},
        "boundaries": manifest.boundaries,
        "size_bytes": size,
        "raw_bytes": manifest.raw_bytes,
        "coverage": manifest.coverage,
        "trimmed_from": manifest.trimmed_from or None,
        "phases": [
            {
                "id": p.id,
                "representative": p.representative,
                "intervals": p.intervals,
                "stratum": p.stratum if p.stratum >= 0 else None,
                "started_seconds": p.started,
                "weight": p.weight,
                "time_share": p.time_share,
                "t_run": p.cpu_run if clock == "cpu" else p.t_run,
                "t_ref": _median_by(clock, *p.restored(CRIU)),
                "t_ref_direct": _median_by(clock, p.t_ref_direct, p.cpu_ref_direct),
                "only_criu": p.only_criu,
                "restore_error": p.restore_error(clock),
                "kernel": {
                    "run": p.kernel_run,
                    "run_error": p.kernel_run_error,
                    **_kernel("ref", p.kernel(CRIU) if p.t_ref else None),
                    **_kernel("ref_direct", p.kernel(DIRECT) if p.t_ref_direct else None),
                    "faults": p.faults_ref,
                    "faults_direct": p.faults_ref_direct,
                    "calls": p.calls if p.calls >= 0 else None,
                },
                "warmup_intervals": p.warmup,
                "pages": {"raw": p.raw_pages, "kept": p.kept_pages, "touched": p.touched_pages},
                "status": "ok" if p.can_run else "failed",
                "failure": p.failure,
            }
            for p in manifest.phases
        ],
        "warmup": {
            "intervals": max((p.warmup for p in manifest.phases), default=0),
            "trials": [
                {"intervals": t.warmup, "relative": t.relative, "error": t.error, "against_run": t.against_run}
                for t in manifest.warmup_trials
            ],
        },
        "errors": {
            "selection": manifest.selection_error,
            "selection_held_out": manifest.held_out_error,
            "restore": manifest.restore_error,
        },
        "cpu_features": list(manifest.cpu_features),
        "files": files,
        "external_files": [vars(file) for file in manifest.external_files],
        "warnings": list(manifest.warnings),
        "notes": list(manifest.notes),
    }


def _kernel(name: str, known: KernelShare | None) -> dict[str, float | None]:
    return {name: known.share if known else None, f"{name}_error": known.error if known else None}


def _median_by(clock: str, wall: Sequence[float], cpu: Sequence[float]) -> float | None:
    return statistics.median(cpu if clock == "cpu" else wall) if wall else None
