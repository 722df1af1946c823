# SPDX-License-Identifier: Apache-2.0
"""Rearrange manifests of version 1, in which every value lay in one of two flat objects, as later ones have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TIMES = {"wall": "t_ref", "cpu": "cpu_ref", "warm": "warm_ref", "kernel": "kernel_ref", "faults": "faults_ref"}

_PHASE: dict[str, Any] = {
    **{
        name: name
        for name in (
            "id", "representative", "intervals", "stratum", "weight", "time_share", "spread", "work", "warmup", "calls",
        )
    },
    "in_run": {
        "started": "started", "wall": "t_run", "cpu": "cpu_run", "kernel": "kernel_run",
        "kernel_error": "kernel_run_error",
    },
    "events": {"warm": "warm_event", "start": "start_event", "end": "end_event"},
    "checkpoint": {
        "raw_bytes": "raw_bytes", "raw_pages": "raw_pages", "kept_pages": "kept_pages",
        "touched_pages": "touched_pages", "whole": "whole",
    },
    "criu": {**_TIMES, "failure": "failure"},
    "direct": {**{name: f"{old}_direct" for name, old in _TIMES.items()}, "failure": "only_criu"},
}  # fmt: skip
"""New key -> old key, or the table of an object that is new."""

_MANIFEST: dict[str, Any] = {
    **{
        name: name
        for name in (
            "reference_node", "reference", "work_unit", "total_work", "raw_bytes", "warnings", "notes",
            "trimmed_from", "warmup_trials",
        )
    },
    "program": {
        name: name for name in ("argv", "executable", "cwd", "stdin", "isa", "cpu_features", "outputs")
    },
    "tracing": {
        "tracer": "tracer", "unit": "unit", "interval": "interval", "seconds": "trace_seconds", "sites": "sites",
        "removed_sites": "removed_sites", "install_seconds": "install_seconds",
    },
    "timing": {
        "intervals": "intervals", "seconds": "timing_seconds", "cpu_seconds": "timing_cpu_seconds",
        "boundaries": "boundaries",
    },
    "selection": {
        "seed": "seed", "dropped_time_share": "dropped_time_share", "error": "selection_error",
        "held_out_error": "held_out_error",
    },
    "files": {"private": "private_files", "external": "external_files"},
}  # fmt: skip


def from_version_1(old: Mapping[str, Any]) -> dict[str, Any]:
    """The same manifest as version 2 has it. What is missing or wrong stays so: whoever reads it will say that."""
    new = _arranged(_MANIFEST, old)
    phases = old.get("phases")
    if isinstance(phases, list):
        phases = [_arranged(_PHASE, phase) if isinstance(phase, Mapping) else phase for phase in phases]
    return {**new, "phases": phases} if "phases" in old else new


def _arranged(table: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {
        new: old[name] if isinstance(name, str) else _arranged(name, old)
        for new, name in table.items()
        if not isinstance(name, str) or name in old
    }
