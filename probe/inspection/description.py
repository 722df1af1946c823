# SPDX-License-Identifier: Apache-2.0
"""Describe what is in a probe, as JSON and for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probe.formats.choices import SECONDS
from probe.formats.kernel_time import KernelShare
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, SharingRecord
from probe.inspection.real_data import phase_data, real_data
from probe.prediction.busyness import slowdowns_of_reference
from reducer.unpack import open_probe

FORMAT_VERSION = 1
"""Version of the JSON."""


def show(path: Path | str) -> dict[str, Any]:
    """The probe's description as JSON (docs/json.md). Raises ProbeFileDamaged, StorageError."""
    with open_probe(Path(path)) as archive:
        archive.verify()
        manifest = Manifest.from_json(archive.manifest)
        files = [{"path": f.path, "purpose": f.purpose, "size": f.size, "sha256": f.sha256} for f in archive.files]
        size = archive.size_bytes
    clock, tracing, sharing = manifest.reference.clock, manifest.tracing, sharing_json(manifest.sharing)
    return {
        "format_version": FORMAT_VERSION,
        "id": manifest.id,
        "program": list(manifest.program.argv),
        "executable": manifest.program.executable,
        "tracer": tracing.tracer,
        "unit": tracing.unit,
        "interval": tracing.interval,
        "interval_seconds": tracing.interval if tracing.unit == SECONDS else None,
        "intervals": manifest.timing.intervals,
        "isa": manifest.program.isa,
        "clock": clock,
        "reference_node": asdict(manifest.reference_node),
        "et_ref_seconds": manifest.reference.seconds,
        "et_ref_runs": list(manifest.reference.runs),
        "et_plain_environment_seconds": manifest.reference.plain_seconds,
        "noise": manifest.noise,
        "tracing_overhead": tracing.seconds / manifest.reference.early_seconds,
        "sites": {"installed": tracing.sites, "removed": tracing.removed_sites, "seconds": tracing.install_seconds},
        "counted_share": tracing.counted_share,
        "boundaries": asdict(manifest.timing.boundaries),
        "size_bytes": size,
        "raw_bytes": manifest.raw_bytes,
        "coverage": manifest.coverage,
        **real_data(manifest),
        "outside": _outside(manifest),
        "threads": manifest.threads,
        "sharing": sharing and {**sharing, "fastest": _fastest(manifest)},
        "trimmed_from": manifest.trimmed_from or None,
        "phases": [
            {
                "id": p.id,
                "representative": p.representative,
                "intervals": p.intervals,
                "stratum": p.stratum if p.stratum >= 0 else None,
                "started_seconds": p.in_run.started,
                "weight": p.weight,
                "time_share": p.time_share,
                "t_run": p.in_run.by(clock),
                "t_ref": _median(p.restored(CRIU).by(clock)),
                "t_ref_direct": _median(p.direct.by(clock)),
                "only_criu": p.only_criu,
                "restore_error": p.restore_error(clock),
                "kernel": {
                    "run": p.in_run.kernel,
                    "run_error": p.in_run.kernel_error,
                    **_kernel("ref", p.criu.in_kernel()),
                    **_kernel("ref_direct", p.direct.in_kernel()),
                    "faults": p.criu.faults,
                    "faults_direct": p.direct.faults,
                    "calls": p.calls if p.calls >= 0 else None,
                },
                "warmup_intervals": p.warmup,
                "pages": p.checkpoint.pages(),
                **phase_data(p),
                "sharing": sharing_json(p.sharing),
                "status": "ok" if p.can_run else "failed",
                "failure": p.criu.failure,
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
        "yardsticks": slowdowns_of_reference(manifest),
        "errors": {
            "selection": manifest.selection.error,
            "selection_held_out": manifest.selection.held_out_error,
            "restore": manifest.restore_error,
        },
        "cpu_features": list(manifest.program.cpu_features),
        "files": files,
        "external_files": [vars(file) for file in manifest.files.external],
        "warnings": list(manifest.warnings),
        "notes": list(manifest.notes),
    }


def sharing_json(found: SharingRecord | None) -> dict[str, float | None]:
    """How threads share the work, as JSON (docs/json.md); empty where one thread works, or where that is not known."""
    return {} if found is None else asdict(found)


def _fastest(manifest: Manifest) -> float | None:
    """Amdahl's bound: how many times as fast more threads make the run at most; null where one never works alone."""
    return 1.0 / manifest.sharing.alone if manifest.sharing and manifest.sharing.alone else None


def _outside(manifest: Manifest) -> dict[str, Any]:
    """Time in other processes; zero where the program started none."""
    found = manifest.outside
    if found is None:
        return {"share": 0.0, "wall_seconds": 0.0, "cpu_seconds": 0.0, "processes": 0, "commands": []}
    return {
        "share": found.share,
        "wall_seconds": found.wall,
        "cpu_seconds": found.cpu,
        "processes": found.processes,
        "commands": list(found.commands),
    }


def _kernel(name: str, known: KernelShare | None) -> dict[str, float | None]:
    return {name: known.share if known else None, f"{name}_error": known.error if known else None}


def _median(times: Sequence[float]) -> float | None:
    return statistics.median(times) if times else None
