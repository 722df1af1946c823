# SPDX-License-Identifier: Apache-2.0
"""What is in a probe, as JSON and for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from probe.kernel_time import KernelShare
from probe.manifest import CRIU, DIRECT, Manifest
from probe.profile import SECONDS, Profile
from probe.result import RunResult
from probe.trimming import Tradeoff, TrimmedProbe
from reducer.member_table import FORMAT_VERSION
from reducer.unpack import open_probe

TRACE_VERSION = 1
"""Of the JSON of `probe trace`."""


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
    }


def trace_json(profile: Profile, path: Path) -> dict[str, Any]:
    """What `probe trace --json` prints of the profile written to `path` (docs/json.md)."""
    return {
        "format_version": TRACE_VERSION,
        "profile": str(path),
        "tracer": profile.tracer,
        "unit": profile.unit,
        "interval": profile.interval,
        "intervals": profile.intervals,
        "blocks": len(profile.blocks.site),
        "seconds": float(profile.seconds.sum()),
        "instructions": float(profile.instructions().sum()),
        "sites": {"installed": profile.installed_sites, "removed": profile.removed_sites},
    }


def _kernel(name: str, known: KernelShare | None) -> dict[str, float | None]:
    return {name: known.share if known else None, f"{name}_error": known.error if known else None}


def _median_by(clock: str, wall: Sequence[float], cpu: Sequence[float]) -> float | None:
    return statistics.median(cpu if clock == "cpu" else wall) if wall else None


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _interval(description: dict[str, Any]) -> str:
    if description["unit"] == SECONDS:
        return _seconds(description["interval_seconds"])
    return f"{description['interval'] / 1e6:g} M instructions"


_MUCH_KERNEL = 0.05
"""Share of a phase's CPU time in the kernel from which on the phase is named."""


def _in_kernel(phases: list[dict[str, Any]]) -> str:
    """Share of the CPU time in the kernel, and the phases where it is much."""
    known = [(p["id"], p["time_share"], p["kernel"]["run"], p["kernel"]["run_error"]) for p in phases]
    known = [one for one in known if one[2] is not None]
    covered = sum(share for _, share, _, _ in known)
    if not covered:
        return "not known"
    whole = sum(share * inside for _, share, inside, _ in known) / covered
    named = ", ".join(f"{phase}: {i:.0%} ± {e:.0%}" for phase, _, i, e in known if i >= _MUCH_KERNEL)
    return f"{_percent(whole)} of the CPU time{' (phases ' + named + ')' if named else ''}"


def _warmup(described: dict[str, Any]) -> str:
    """The warm-up, and what others would have done to the region times."""
    tried = ", ".join(
        f"{t['intervals']}: {t['relative'] - 1:+.1%} ± {t['error']:.1%}" for t in described["trials"][:-1]
    )
    compared = f" (regions against {described['trials'][-1]['intervals']}: {tried})" if tried else ""
    return f"{described['intervals']} interval{'s' * (described['intervals'] != 1)}{compared}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.2f}"


def _bytes(value: int) -> str:
    return f"{value / 1e6:.1f} MB" if value >= 1e5 else f"{value} bytes"


def print_probe(description: dict[str, Any], console: Console) -> None:
    """The description for people."""
    d = description
    saved = 1 - d["size_bytes"] / d["raw_bytes"] if d["raw_bytes"] else 0.0
    compared = f"{_percent(saved)} less than" if saved >= 0 else "more than"
    lines = [
        f"program         {' '.join(d['program'])}",
        f"ET_ref          {_seconds(d['et_ref_seconds'])} ({d['clock']} time, median of {len(d['et_ref_runs'])}; "
        f"{_seconds(d['et_plain_environment_seconds'])} in its plain environment)",
        f"size            {_bytes(d['size_bytes'])}, {compared} its raw checkpoints ({_bytes(d['raw_bytes'])})",
        f"intervals       {d['intervals']} of {_interval(d)}, {len(d['phases'])} phases"
        f"{' left of ' + str(d['trimmed_from']) if d['trimmed_from'] else ''}, "
        f"{_percent(d['coverage'])} of the time covered",
        f"noise           {d['noise']:.3f} (timing run / plain run); tracing {d['tracing_overhead']:.3f}",
        f"errors          selection {_percent(d['errors']['selection'], 2)} "
        f"(held out {_percent(d['errors']['selection_held_out'], 2)}), "
        f"restore {_percent(d['errors']['restore'], 2)} in the median",
        f"kernel          {_in_kernel(d['phases'])}",
        f"warm-up         {_warmup(d['warmup'])}",
        f"any user        {sum(1 for p in d['phases'] if not p['only_criu'])} of {len(d['phases'])} phases can be "
        "restored without root and CRIU",
        f"CPU features    {' '.join(d['cpu_features']) or 'those of every x86-64 processor'}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("phase", "at/s", "stands for", "weight", "time", "T_run/ms", "T_ref/ms", "restore", "kept", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for p in d["phases"]:
        table.add_row(
            str(p["id"]), f"{p['started_seconds']:.2f}", str(p["intervals"]), _percent(p["weight"]),
            _percent(p["time_share"]), _milliseconds(p["t_run"]), _milliseconds(p["t_ref"]),
            _percent(p["restore_error"]), _percent(p["pages"]["kept"] / max(1, p["pages"]["raw"])),
            "" if p["status"] == "ok" else p["status"],
        )  # fmt: skip
    console.print(table)
    for file in d["files"]:
        console.print(f"{file['purpose']:<8} {file['path']} ({_bytes(file['size'])})", highlight=False, markup=False)
    for file in d["external_files"]:
        line = f"external {file['path']} ({_bytes(file['size'])}): every node must have it"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for warning in d["warnings"]:
        console.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)


def print_tradeoff(rows: Sequence[Tradeoff], console: Console) -> None:
    """What keeping fewer phases would give."""
    table = Table(box=None, pad_edge=False)
    for name in ("phases", "coverage", "size", "expected error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.phases), _percent(row.coverage), _bytes(row.size_bytes), _percent(row.expected_error, 2)
        )  # fmt: skip
    console.print(table)


def print_trimmed(trimmed: TrimmedProbe, console: Console) -> None:
    """What `probe trim` has made, and what it takes to run it."""
    m = trimmed.manifest
    console.print(
        f"{trimmed.path}: {len(m.phases)} of {m.trimmed_from} phases, {_percent(m.coverage)} of the time covered, "
        f"{_bytes(trimmed.size_bytes)} (before: {_bytes(trimmed.source_bytes)}), expected error "
        f"{_percent(trimmed.expected_error, 2)}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    if trimmed.least_coverage is not None:
        console.print(
            f"warning: `probe run` predicts from this probe only with --min-coverage {trimmed.least_coverage:g}; "
            "the rest of the time is extrapolated",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip


def print_result(result: RunResult, console: Console) -> None:
    """The prediction for people; never a number without its interval."""
    p = result.prediction
    table = Table(box=None, pad_edge=False)
    for name in ("phase", "time share", "T_ref", "T_here", "ratio", "status"):
        table.add_column(name, justify="right")
    for phase in result.to_json()["phases"]:
        here, ref = phase["t_cand"], phase["t_ref"]
        table.add_row(
            str(phase["id"]), _percent(phase["time_share"]), _seconds(ref), _seconds(here),
            f"{here / ref:.3f}" if here and ref else "-", phase["status"],
        )  # fmt: skip
    console.print(table)
    for phase in result.phases:
        if phase.failure:
            console.print(f"failed: {phase.failure}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"predicted: {p.seconds:.3f} s, 95 % interval {p.low:.3f} to {p.high:.3f} s "
        f"({_percent(p.coverage)} of the run covered)",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        "estimators: " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in p.estimators.items()),
        highlight=False,
        soft_wrap=True,
    )
    if result.narrowed is not None and not result.narrowed.limit:
        console.print(f"target error: {result.narrowed.sentence()}", highlight=False, markup=False, soft_wrap=True)
    for warning in result.warnings:
        console.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
