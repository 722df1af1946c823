# SPDX-License-Identifier: Apache-2.0
"""Pack all that was found out into one file: the last stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from checkpoint.compiled import restorer
from checkpoint.errors import NoPrediction, ProbeError
from probe.contents.carried_criu import pack_criu
from probe.contents.carried_files import external_files, private_files, set_apart
from probe.contents.cpu_features import needed_features
from probe.contents.members import interval_table, phase_code, touched_name
from probe.formats.arrays import FloatArray
from probe.formats.interval_table import MEMBER as INTERVALS_NAME
from probe.formats.interval_table import encode as encode_intervals
from probe.formats.intervals import WORK_UNIT, vectors, work
from probe.formats.kernel_time import KernelShare, kernel_share
from probe.formats.manifest import CRIU, DIRECT, Manifest, PhaseRecord, PrivateFile
from probe.formats.phase_code import CODE_NAME
from probe.formats.phase_code import encode as encode_code
from probe.formats.selection import Phase
from probe.formats.timing import TimedProfile
from probe.node.criu_member import CRIU_NAME
from probe.node.facts import this_node
from probe.node.measuring import MeasuredPhase
from probe.node.phases import RESTORER_NAME
from probe.pipeline.capture import captured_outputs, checkpoint_files, written_copies
from probe.pipeline.reduce import touched_file
from probe.pipeline.stage import Build
from probe.prediction.limits import doubts_of_phases
from probe.progress import Report
from reducer.archive import ContainedFile, PhaseCheckpoint, write_probe

NAME = "pack"
OPTIONS: tuple[str, ...] = ()

LEAST_COVERAGE = 0.9
"""Share of the time that the restored phases must hold, or there is no probe."""


def run(build: Build, report: Report) -> None:
    """Write the probe. Raises StorageError; the first phase's error, or NoPrediction, where too little of the run was
    restored; Unpredictable, ProgramTooShort where a limit of probe.prediction.limits is exceeded."""
    folder = build.folder.path
    opened = [path for phase in build.flat for path in phase.opened]
    outputs = captured_outputs(folder)
    files, left_out = set_apart(
        checkpoint_files(folder, build.program, build.captured, outputs, opened), build.options.external
    )
    private = []
    for phase in build.captured:
        contained, listed = private_files(phase.phase, written_copies(folder, phase))
        files += contained
        private += listed
    rows, amounts = vectors(build.profile, build.timed), work(build.profile, build.timed)
    records = _records(build, amounts)
    _require_coverage(records, build.measured)
    build.warnings += doubts_of_phases(records, build.reference, build.measured)
    build.manifest = _manifest(build, records, float(amounts.sum()), outputs, private, left_out)
    checkpoints = [PhaseCheckpoint(reduced.phase, folder / reduced.folder) for reduced in build.reduced]
    data = _data(build, checkpoints, rows, amounts)
    manifest, compression = build.manifest.to_json(), build.options.compress
    build.sizes = write_probe(build.target, manifest, checkpoints, _distinct(files), data, compression)


def doubts(build: Build) -> list[str]:
    """None: a warning that comes after the probe was written is in no probe."""
    return []


def _manifest(
    build: Build,
    records: Sequence[PhaseRecord],
    total_work: float,
    outputs: tuple[str, str],
    private: Sequence[PrivateFile],
    left_out: Sequence[ContainedFile],
) -> Manifest:
    profile, timed, program = build.profile, build.timed, build.program
    by_cpu = build.reference.clock == "cpu"
    return Manifest(
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
        reference=build.reference,
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
        total_work=total_work,
        phases=tuple(records),
        dropped_time_share=build.selection.dropped_time_share,
        selection_error=build.selection.selection_error,
        held_out_error=build.selection.held_out_error,
        seed=build.options.selection.seed,
        cpu_features=tuple(needed_features(profile)),
        outputs=outputs,
        private_files=tuple(private),
        raw_bytes=sum(r.raw_bytes for r in build.reduced),
        warnings=tuple(build.warnings),
        notes=tuple(dict.fromkeys(build.notes)),
        external_files=tuple(external_files(left_out)),
        warmup_trials=tuple(build.warmup.trials),
    )


def _data(
    build: Build, checkpoints: Sequence[PhaseCheckpoint], rows: sp.csr_array, amounts: FloatArray
) -> dict[str, bytes]:
    """The probe's members beside checkpoints and files, by name. `rows`: vectors of the intervals, `amounts`: work."""
    touched = {c.id: path for c in checkpoints if (path := touched_file(build.folder.path, c.id)).exists()}
    data = {touched_name(phase): path.read_bytes() for phase, path in touched.items()}
    data[INTERVALS_NAME] = encode_intervals(interval_table(rows, amounts, build.timed, build.selection))
    data[RESTORER_NAME] = restorer().read_bytes()
    folders = {c.id: c.folder for c in checkpoints}
    data[CODE_NAME] = encode_code(phase_code(build.profile, rows, build.selection, build.flat, folders, touched))
    if build.options.with_criu:
        data[CRIU_NAME] = pack_criu(build.criu)
    return data


def _distinct(files: list[ContainedFile]) -> list[ContainedFile]:
    return list({f.original_path: f for f in files}.values())


def _records(build: Build, amounts: FloatArray) -> list[PhaseRecord]:
    """The phases as the manifest has them; `amounts`: work of the intervals, (N,)."""
    by_id = {p.id: p for p in build.selection.phases}
    timed = build.timed
    begins = np.concatenate([[0.0], np.cumsum(timed.seconds)])
    records = []
    by_criu, directly = ({m.phase: m for m in build.measured if m.restorer == name} for name in (CRIU, DIRECT))
    for phase, reduced, flat in zip(build.captured, build.reduced, build.flat, strict=True):
        result = by_criu[phase.phase]
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
