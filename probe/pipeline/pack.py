# SPDX-License-Identifier: Apache-2.0
"""The last stage: everything that was found out becomes one file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoint.compiled import restorer
from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import Criu
from checkpoint.errors import NoPrediction, ProbeError
from checkpoint.process.program import Program
from probe.contents.carried_criu import pack_criu
from probe.contents.carried_files import external_files, needed_files, private_files, set_apart
from probe.contents.cpu_features import needed_features
from probe.contents.members import interval_table, phase_code, touched_name
from probe.formats.arrays import FloatArray
from probe.formats.checkpoints import CapturedPhase, FlatPhase, ReducedPhase
from probe.formats.interval_table import MEMBER as INTERVALS_NAME
from probe.formats.interval_table import encode as encode_intervals
from probe.formats.intervals import WORK_UNIT, vectors, work
from probe.formats.kernel_time import KernelShare, kernel_share
from probe.formats.manifest import Manifest, PhaseRecord, WarmupTrial
from probe.formats.phase_code import CODE_NAME
from probe.formats.phase_code import encode as encode_code
from probe.formats.profile import Profile
from probe.formats.reference import Reference
from probe.formats.selection import Phase, Selection
from probe.formats.timing import TimedProfile
from probe.node.criu_member import CRIU_NAME
from probe.node.facts import this_node
from probe.node.measuring import MeasuredPhase
from probe.node.phases import RESTORER_NAME
from probe.pipeline.capture import written_copies
from probe.pipeline.reduce import touched_file
from probe.prediction.limits import doubts_of_phases
from reducer.archive import ArchiveSizes, ContainedFile, PhaseCheckpoint, write_probe
from reducer.choices import Compression

LEAST_COVERAGE = 0.9
"""Share of the time that the restored phases must hold, or there is no probe."""


@dataclass(frozen=True)
class Findings:
    """What the stages before left. The sequences of phases have one order."""

    program: Program
    profile: Profile
    reference: Reference
    timed: TimedProfile
    selection: Selection
    captured: Sequence[CapturedPhase]
    reduced: Sequence[ReducedPhase]
    measured: Sequence[MeasuredPhase]
    flat: Sequence[FlatPhase]
    direct: Sequence[MeasuredPhase]
    outputs: tuple[str, ...]
    seed: int
    warnings: Sequence[str]
    external: Sequence[str] = ()
    compression: Compression = "gzip"
    criu: Criu | None = None
    """To be carried along."""
    warmup_trials: Sequence[WarmupTrial] = ()


def checkpoint_files(
    folder: Path,
    program: Program,
    captured: Sequence[CapturedPhase],
    outputs: tuple[str, ...],
    opened: Sequence[str] = (),
) -> list[ContainedFile]:
    """The files that the checkpoints below `folder` map or read, or open (`opened`) while they run."""
    images = [(read_checkpoint(folder / c.folder), c.written) for c in captured]
    return needed_files(images, os.path.realpath(program.executable), outputs, opened)


def pack(target: Path, folder: Path, found: Findings) -> tuple[Manifest, ArchiveSizes]:
    """Write the probe to `target`; `folder` is the work folder. Raises StorageError; the first phase's error, or
    NoPrediction, where too little of the run was restored; Unpredictable, ProgramTooShort where a limit of
    probe.prediction.limits is exceeded."""
    opened = [path for phase in found.flat for path in phase.opened]
    files, left_out = set_apart(
        checkpoint_files(folder, found.program, found.captured, found.outputs, opened), found.external
    )
    private = []
    for phase in found.captured:
        contained, listed = private_files(phase.phase, written_copies(folder, phase))
        files += contained
        private += listed
    rows, amounts = vectors(found.profile, found.timed), work(found.profile, found.timed)
    records = _records(found, amounts)
    _require_coverage(records, found.measured)
    doubts = doubts_of_phases(records, found.reference, [*found.measured, *found.direct])
    profile, timed, program = found.profile, found.timed, found.program
    by_cpu = found.reference.clock == "cpu"
    manifest = Manifest(
        argv=program.argv,
        executable=program.executable,
        cwd=program.cwd,
        stdin=program.stdin,
        isa=program.isa,
        tracer=profile.tracer,
        unit=profile.unit,
        interval=profile.interval,
        intervals=timed.intervals,
        reference_node=this_node(),
        reference=found.reference,
        timing_seconds=timed.wall_seconds,
        timing_cpu_seconds=float(timed.cpu.sum()),
        trace_seconds=profile.cpu_seconds if by_cpu else float(profile.seconds.sum()),
        sites=profile.installed_sites,
        removed_sites=profile.removed_sites,
        install_seconds=profile.install_seconds,
        boundaries={
            "all": profile.intervals - 1,
            "unmarked": timed.unmarked,
            "missing": timed.missing,
            "out_of_order": timed.out_of_order,
            "markers_agreeing": timed.agreeing,
            "markers_compared": timed.compared,
        },
        work_unit=WORK_UNIT,
        total_work=float(amounts.sum()),
        phases=tuple(records),
        dropped_time_share=found.selection.dropped_time_share,
        selection_error=found.selection.selection_error,
        held_out_error=found.selection.held_out_error,
        seed=found.seed,
        cpu_features=tuple(needed_features(profile)),
        outputs=found.outputs,
        private_files=tuple(private),
        raw_bytes=sum(r.raw_bytes for r in found.reduced),
        warnings=(*found.warnings, *doubts),
        external_files=tuple(external_files(left_out)),
        warmup_trials=tuple(found.warmup_trials),
    )
    data = {
        touched_name(r.phase): touched_file(folder, r.phase).read_bytes()
        for r in found.reduced
        if touched_file(folder, r.phase).exists()
    }
    data[INTERVALS_NAME] = encode_intervals(interval_table(rows, amounts, timed, found.selection))
    data[RESTORER_NAME] = restorer().read_bytes()
    checkpoints = [PhaseCheckpoint(r.phase, folder / r.folder) for r in found.reduced]
    code = phase_code(
        profile, rows, found.selection, found.flat,
        {c.id: c.folder for c in checkpoints},
        {c.id: path for c in checkpoints if (path := touched_file(folder, c.id)).exists()},
    )  # fmt: skip
    data[CODE_NAME] = encode_code(code)
    if found.criu is not None:
        data[CRIU_NAME] = pack_criu(found.criu)
    sizes = write_probe(target, manifest.to_json(), checkpoints, _distinct(files), data, found.compression)
    return manifest, sizes


def _distinct(files: list[ContainedFile]) -> list[ContainedFile]:
    return list({f.original_path: f for f in files}.values())


def _records(found: Findings, amounts: FloatArray) -> list[PhaseRecord]:
    """The phases as the manifest has them; `amounts`: work of the intervals, (N,)."""
    by_id = {p.id: p for p in found.selection.phases}
    timed = found.timed
    begins = np.concatenate([[0.0], np.cumsum(timed.seconds)])
    records = []
    directly = {m.phase: m for m in found.direct}
    for phase, reduced, flat, result in zip(found.captured, found.reduced, found.flat, found.measured, strict=True):
        direct = directly.get(phase.phase, MeasuredPhase(phase.phase, ()))
        chosen = by_id[phase.phase]
        at = chosen.representative
        in_run = _kernel_in_run(timed, chosen)
        records.append(
            PhaseRecord(
                id=chosen.id,
                representative=at,
                intervals=len(chosen.members),
                weight=chosen.weight,
                time_share=chosen.time_share,
                spread=chosen.seconds_spread,
                work=float(amounts[at]),
                started=float(begins[at]),
                t_run=float(timed.seconds[at]),
                cpu_run=float(timed.cpu[at]),
                t_ref=tuple(t.wall for t in result.times),
                cpu_ref=tuple(t.cpu for t in result.times),
                warm_ref=_warm(result),
                t_ref_direct=tuple(t.wall for t in direct.times),
                cpu_ref_direct=tuple(t.cpu for t in direct.times),
                warm_ref_direct=_warm(direct),
                only_criu=flat.refused or direct.failure,
                kernel_ref=_kernel(result),
                kernel_ref_direct=_kernel(direct),
                faults_ref=_faults(result),
                faults_ref_direct=_faults(direct),
                kernel_run=in_run.share if in_run else None,
                kernel_run_error=in_run.error if in_run else None,
                calls=flat.calls_made,
                warmup=phase.warmup,
                warm_event=phase.warm_event,
                start_event=phase.start_event,
                end_event=phase.end_event,
                raw_pages=reduced.raw_pages,
                kept_pages=reduced.kept_pages,
                touched_pages=reduced.touched,
                whole=reduced.whole,
                failure=result.failure,
                raw_bytes=reduced.raw_bytes,
                stratum=chosen.stratum,
            )
        )
    return records


def _kernel(measured: MeasuredPhase) -> tuple[float, ...]:
    found = tuple(t.kernel for t in measured.times if t.kernel is not None)
    return found if len(found) == len(measured.times) else ()


def _faults(measured: MeasuredPhase) -> int | None:
    found = [t.faults for t in measured.times if t.faults is not None]
    return int(np.median(found)) if found else None


def _kernel_in_run(timed: TimedProfile, phase: Phase) -> KernelShare | None:
    """Of all the phase's intervals together: one of them has few ticks."""
    if not len(timed.kernel):
        return None
    members = phase.members[np.isfinite(timed.kernel[phase.members])]
    # What the kernel took back from one interval it had given to another.
    return kernel_share([max(0.0, float(timed.kernel[members].sum()))], [float(timed.cpu[members].sum())])


def _warm(measured: MeasuredPhase) -> float:
    return float(np.median([t.warm for t in measured.times])) if measured.times else 0.0


def _require_coverage(records: list[PhaseRecord], measured: Sequence[MeasuredPhase]) -> None:
    """Raise the first phase's error where too little of the run could be restored."""
    coverage = sum(r.time_share for r in records if r.can_run)
    if coverage >= LEAST_COVERAGE:
        return
    first: ProbeError | None = next((m.error for m in measured if m.error is not None), None)
    if first is not None:
        raise first
    raise NoPrediction(
        f"the phases chosen cover {coverage:.0%} of the run, {LEAST_COVERAGE:.0%} are needed; allow more --max-phases"
    )
