# SPDX-License-Identifier: Apache-2.0
"""Pack all that was found out into one file: the last stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from checkpoint.capture.stored import read_state
from checkpoint.compiled import restorer
from checkpoint.errors import NoPrediction, ProbeError, ProgramUnsupported
from probe.contents.captured_files import captured_outputs, checkpoint_files, touched_file, written_copies
from probe.contents.carried_criu import pack_criu
from probe.contents.carried_files import external_files, private_files, set_apart
from probe.contents.cpu_features import needed_features
from probe.contents.members import interval_table, phase_code, touched_name
from probe.flow.stored import FLOW_NAME
from probe.flow.stored import encode as encode_flow
from probe.formats.arrays import FloatArray
from probe.formats.checkpoints import FlatPhase
from probe.formats.interval_table import MEMBER as INTERVALS_NAME
from probe.formats.interval_table import encode as encode_intervals
from probe.formats.intervals import WORK_UNIT, outside_share, vectors, work
from probe.formats.kernel_time import KernelShare, kernel_share
from probe.formats.manifest import (
    Boundaries,
    FilesRecord,
    Manifest,
    NodeRecord,
    OutsideRecord,
    PrivateFile,
    ProgramRecord,
    SelectionRecord,
    TimingRecord,
    TracingRecord,
)
from probe.formats.phase_code import CODE_NAME
from probe.formats.phase_code import encode as encode_code
from probe.formats.phase_record import CRIU, DIRECT, NO_CRIU_IMAGES, CheckpointRecord, Events, InRun, PhaseRecord, Times
from probe.formats.reference import Reference
from probe.formats.selection import Phase
from probe.formats.timing import TimedProfile
from probe.node.criu_member import CRIU_NAME
from probe.node.facts import this_node
from probe.node.measuring import MeasuredPhase
from probe.node.phases import RESTORER_NAME
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import LEAST_COVERAGE, Build
from probe.prediction.limits import doubts_of_phases
from probe.prediction.sharing import sharing_of
from probe.progress import Report
from reducer.archive import ContainedFile, PhaseCheckpoint, write_probe

NAME = "pack"
OPTIONS: tuple[str, ...] = ()

_MOST_COMMANDS = 20


def runs(_plan: FullRuns) -> int:
    """None."""
    return 0


def run(build: Build, report: Report) -> None:
    """Write the probe. Raises StorageError; the first phase's error, or NoPrediction, where too little of the run was
    restored; Unpredictable, Diverged, ProgramTooShort where a limit of probe.prediction.limits is exceeded."""
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
    _require_coverage(records, build.measured, build.flat)
    build.warnings += doubts_of_phases(records, build.reference, build.measured, sharing_of(build.profile, build.timed))
    # Of time, as of nothing, there is no direct estimate.
    total_work = 0.0 if build.profile.thin else float(amounts.sum())
    build.manifest = _manifest(build, records, total_work, outputs, private, left_out)
    checkpoints = [PhaseCheckpoint(reduced.phase, folder / reduced.folder) for reduced in build.reduced]
    data = _data(build, checkpoints, rows, amounts)
    manifest, compression = build.manifest.to_json(), build.options.compress
    # What this program could not read again must not be written.
    Manifest.from_json(manifest)
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
    # Synthetic memory comes without a state of its own.
    states = [read_state(build.folder.path / one.folder) for one in build.own_data or build.reduced]
    return Manifest(
        program=ProgramRecord(
            argv=program.argv,
            executable=program.probed_executable,
            cwd=program.probed_cwd,
            stdin=program.stdin,
            isa=program.isa,
            cpu_features=tuple(needed_features(profile, states)),
            outputs=outputs,
        ),
        tracing=_tracing(build),
        timing=TimingRecord(
            intervals=timed.intervals,
            seconds=timed.wall_seconds,
            cpu_seconds=float(timed.cpu.sum()) + timed.outside.cpu,
            boundaries=Boundaries(
                all=profile.intervals - 1,
                unmarked=timed.unmarked,
                missing=timed.missing,
                out_of_order=timed.out_of_order,
                markers_agreeing=timed.agreeing,
                markers_compared=timed.compared,
            ),
        ),
        reference_node=NodeRecord(**this_node()),
        reference=build.reference,
        work_unit=WORK_UNIT,
        total_work=total_work,
        selection=SelectionRecord(
            seed=build.options.selection.seed,
            dropped_time_share=build.selection.dropped_time_share,
            error=build.selection.selection_error,
            held_out_error=build.selection.held_out_error,
        ),
        phases=tuple(records),
        raw_bytes=sum(r.raw_bytes for r in build.reduced),
        files=FilesRecord(tuple(private), tuple(external_files(left_out))),
        warnings=tuple(build.warnings),
        notes=tuple(dict.fromkeys(build.notes)),
        outside=_outside(timed, build.reference),
        warmup_trials=tuple(build.warmup.trials),
        threads=program.threads,
        sharing=sharing.record() if (sharing := sharing_of(profile, timed)) else None,
    )


def _outside(timed: TimedProfile, reference: Reference) -> OutsideRecord | None:
    found = timed.outside
    if not found.commands:
        return None
    commands = tuple(dict.fromkeys(found.commands))[:_MOST_COMMANDS]
    return OutsideRecord(outside_share(timed, reference), found.wall, found.cpu, len(found.commands), commands)


def _tracing(build: Build) -> TracingRecord:
    profile = build.profile
    return TracingRecord(
        tracer=profile.tracer,
        unit=profile.unit,
        interval=profile.interval,
        seconds=profile.cpu_seconds if build.reference.clock == "cpu" else float(profile.seconds.sum()),
        sites=profile.installed_sites,
        removed_sites=profile.removed_sites,
        install_seconds=profile.install_seconds,
        counted_share=profile.counted_share,
    )


def _data(
    build: Build, checkpoints: Sequence[PhaseCheckpoint], rows: sp.csr_array, amounts: FloatArray
) -> dict[str, bytes]:
    """The probe's members beside checkpoints and files, by name. `rows`: vectors of the intervals, `amounts`: work."""
    touched = {c.id: path for c in checkpoints if (path := touched_file(build.folder.path, c.id)).exists()}
    data = {touched_name(phase): path.read_bytes() for phase, path in touched.items()}
    data[INTERVALS_NAME] = encode_intervals(interval_table(rows, amounts, build.timed, build.selection))
    data[RESTORER_NAME] = restorer().read_bytes()
    # Synthetic memory has no pages image of its own that is whole.
    folders = {one.phase: build.folder.path / one.folder for one in build.own_data or build.reduced}
    data[CODE_NAME] = encode_code(phase_code(build.profile, rows, build.selection, build.flat, folders, touched))
    if build.options.flow or any(not found.refused for found in build.synthetic.values()):
        data[FLOW_NAME] = encode_flow(build.flow)
    if build.options.with_criu and build.criu is not None:
        data[CRIU_NAME] = pack_criu(build.criu)
    return data


def _distinct(files: list[ContainedFile]) -> list[ContainedFile]:
    return list({f.original_path: f for f in files}.values())


def _records(build: Build, amounts: FloatArray) -> list[PhaseRecord]:
    """The phases as the manifest has them; `amounts`: work of the intervals, (N,)."""
    by_id = {p.id: p for p in build.selection.phases}
    timed = build.timed
    wall, cpu = timed.levels("wall"), timed.levels("cpu")
    begins = np.concatenate([[0.0], np.cumsum(timed.seconds)])
    records = []
    sharing = sharing_of(build.profile, timed)
    by_criu, directly = ({m.phase: m for m in build.measured if m.restorer == name} for name in (CRIU, DIRECT))
    for phase, reduced, flat in zip(build.captured, build.reduced, build.flat, strict=True):
        result = by_criu.get(phase.phase, MeasuredPhase(phase.phase, (), NO_CRIU_IMAGES))
        direct = directly.get(phase.phase, MeasuredPhase(phase.phase, ()))
        chosen = by_id[phase.phase]
        at = chosen.representative
        in_kernel = _kernel_in_run(timed, chosen)
        records.append(
            PhaseRecord(
                id=chosen.id,
                representative=at,
                intervals=len(chosen.members),
                weight=chosen.weight,
                time_share=chosen.time_share,
                spread=chosen.seconds_spread,
                work=float(amounts[at]),
                warmup=phase.warmup,
                in_run=InRun(
                    started=float(begins[at]),
                    wall=float(wall[at]),
                    cpu=float(cpu[at]),
                    kernel=in_kernel.share if in_kernel else None,
                    kernel_error=in_kernel.error if in_kernel else None,
                ),
                events=Events(phase.warm_event, phase.start_event, phase.end_event),
                checkpoint=CheckpointRecord(
                    raw_pages=reduced.raw_pages,
                    kept_pages=reduced.kept_pages,
                    touched_pages=reduced.touched,
                    whole=reduced.whole,
                    raw_bytes=reduced.raw_bytes,
                ),
                criu=_times(result, result.failure),
                direct=_times(direct, flat.refused or direct.failure),
                stratum=chosen.stratum,
                calls=flat.calls_made,
                synthetic=build.synthetic.get(chosen.id),
                sharing=sharing.record(chosen.members) if sharing else None,
            )
        )
    return records


def _times(measured: MeasuredPhase, failure: str) -> Times:
    return Times(
        wall=tuple(t.wall for t in measured.times),
        cpu=tuple(t.cpu for t in measured.times),
        warm=_warm(measured),
        kernel=_kernel(measured),
        faults=_faults(measured),
        failure=failure,
        yardsticks=_yardsticks(measured),
    )


def _yardsticks(measured: MeasuredPhase) -> tuple[tuple[float, ...], ...]:
    found = tuple(t.yardsticks for t in measured.times)
    return found if any(found) else ()


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


def _require_coverage(records: list[PhaseRecord], measured: Sequence[MeasuredPhase], flat: Sequence[FlatPhase]) -> None:
    """Raise the first phase's error where too little of the run could be restored."""
    coverage = sum(r.time_share for r in records if r.can_run)
    if coverage >= LEAST_COVERAGE:
        return
    first: ProbeError | None = next((m.error for m in measured if m.error is not None), None)
    if first is not None:
        raise first
    if all(record.only_direct for record in records) and (reason := next((f.refused for f in flat if f.refused), "")):
        raise ProgramUnsupported(
            f"the phases cannot be restored as they were captured: {reason}; build as root with --capture criu"
        )
    raise NoPrediction(
        f"the phases chosen cover {coverage:.0%} of the run, {LEAST_COVERAGE:.0%} are needed; allow more --max-phases"
    )
