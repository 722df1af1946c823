# SPDX-License-Identifier: Apache-2.0
"""Building a probe: the stages of the pipeline, in order, each leaving its result in the work folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from checkpoint.compiled import restorer
from checkpoint.criu.tool import Criu
from checkpoint.errors import Diverged, ProbeError, ProgramFailed, ProgramTooShort
from checkpoint.process.isa import DEFAULT_ISA
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Program, Streams, resolve_program
from checkpoint.restore.criu_restore import RestoreJob
from probe.contents.carried_files import set_apart
from probe.formats.checkpoints import CapturedPhase, FlatPhase, ReducedPhase, WarmupChoice
from probe.formats.choices import AUTO, SECONDS, unit_of
from probe.formats.intervals import interval_times, vectors, work
from probe.formats.manifest import CRIU, DIRECT, Manifest
from probe.formats.profile import Profile, load_profile, save_profile
from probe.formats.reference import Reference
from probe.formats.timing import TimedProfile, load_timing, save_timing
from probe.node.measuring import MeasuredPhase, PhaseToMeasure, Restorers, away_from, measuring_cpu
from probe.pipeline.capture import captured_outputs, plan_regions, restore_job, take_checkpoints
from probe.pipeline.flatten import flatten_phases
from probe.pipeline.options import BuildOptions
from probe.pipeline.outputs import compare_outputs, compare_written_files, note_written_files
from probe.pipeline.pack import Findings, checkpoint_files, pack
from probe.pipeline.preconditions import check_machine, check_unchanged
from probe.pipeline.reduce import reduce_phases
from probe.pipeline.reference import (
    EARLY_RUNS,
    SpreadRuns,
    measure_reference,
    output_streams,
    plain_run_names,
)
from probe.pipeline.self_check import Known, self_check
from probe.pipeline.validate import MOST_SHIFT, validate
from probe.pipeline.warmup import try_warmups
from probe.pipeline.work_folder import WARMUP_FILE, WorkFolder, work_folder
from probe.prediction.limits import doubts_of_reference, doubts_of_selection
from probe.prediction.target_error import check_target_error
from probe.progress import Display, Silent
from probe.selection.select import Selection, select_phases
from probe.selection.simpoint import select_points
from probe.tracers import trace_program
from reducer.archive import ArchiveSizes
from reducer.choices import Reduction
from reducer.compression import check_packing
from reducer.output_file import check_target, full_disk_named

T = TypeVar("T")


@dataclass(frozen=True)
class BuiltProbe:
    """A finished probe: where it is, what it says of itself, and its sizes in bytes."""

    path: Path
    manifest: Manifest
    sizes: ArchiveSizes


def build(
    argv: Sequence[str],
    output: Path | str,
    *,
    options: BuildOptions | None = None,
    stdin: str = "/dev/null",
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    work: Path | str | None = None,
    resume: bool = False,
    display: Display | None = None,
) -> BuiltProbe:
    """Trace `argv`, choose its phases, checkpoint them and write the probe to `output` (mode 0600).

    Runs the program about nine times in full, in `cwd` (default: here) with environment `env` (default: ours). With
    `work` every stage leaves its result there and `resume` goes on after the last finished one. Needs root.

    Raises the errors of checkpoint.errors: ProgramNotRunnable, ProgramUnsupported, ProgramTooShort, ProgramFailed,
    Diverged, PrivilegeMissing, CriuError, StorageError, PhaseFailed, WorkFolderBusy, ToolMissing,
    Unpredictable.
    """
    chosen = options or BuildOptions()
    target = Path(output).absolute()
    if chosen.points and unit_of(chosen.tracer) == SECONDS:
        raise ProbeError(
            "points chosen elsewhere are intervals of instructions: give --tracer valgrind or --tracer pin"
        )
    program = resolve_program(argv, isa=chosen.isa, stdin=stdin, cwd=cwd, env=env)
    criu = check_machine(target)
    check_packing(chosen.compress)
    check_target_error(chosen.target_error)
    for name in chosen.external:
        if not Path(name).exists():
            raise ProbeError(f"--external {name}: no such file or folder")
    parameters = {"program": program.to_json(), "options": chosen.to_json()}
    with work_folder(Path(work).absolute() if work is not None else None, parameters, resume=resume) as folder:
        job = _Build(program, chosen, folder, criu, display or Silent())
        with away_from(job.cpu), full_disk_named(folder.path):
            return job.run(target)


def trace(
    argv: Sequence[str],
    output: Path | str,
    *,
    tracer: str = "auto",
    interval: float | None = None,
    isa: str = DEFAULT_ISA,
    stdin: str = "/dev/null",
    env: Mapping[str, str] | None = None,
    display: Display | None = None,
) -> Profile:
    """Stage 1 alone: trace `argv` and write its profile to `output`. Needs no root. Errors as in `build`."""
    target = Path(output).absolute()
    check_target(target)
    program = resolve_program(argv, isa=isa, stdin=stdin, env=env)
    with work_folder(None, {}, resume=False) as folder:
        cpu = measuring_cpu()
        streams = output_streams(folder.path, "trace")
        with away_from(cpu), (display or Silent()).stage("trace"), full_disk_named(folder.path):
            profile = trace_program(program, tracer=tracer, interval=interval, streams=streams, cpu=cpu)
        save_profile(profile, target)
    return profile


@dataclass
class _Build:
    """One build under way."""

    program: Program
    options: BuildOptions
    folder: WorkFolder
    criu: Criu
    display: Display
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cpu = measuring_cpu()

    def run(self, target: Path) -> BuiltProbe:
        profile = self._trace()
        reference = self._reference(profile)
        self.warnings += doubts_of_reference(reference)
        self._compare_trace(profile)
        timed = self._validate(profile, reference)
        selection = self._select(profile, timed, reference)
        self.warnings += doubts_of_selection(
            selection, vectors(profile, timed), interval_times(timed, reference), reference
        )
        warmup = self._warmup(profile, timed, selection, reference)
        captured = self._capture(profile, timed, selection, warmup.chosen)
        if self.options.external:
            # A wrong name must not end the build at its very end.
            set_apart(
                checkpoint_files(self.folder.path, self.program, captured, self._outputs()),
                self.options.external,
            )
        reduced = self._reduce(captured, timed)
        flat = self._flatten(captured, reduced, timed)
        known = Known(profile, timed, selection)
        measured, direct, reference = self._self_check(captured, reduced, flat, known, reference)
        found = Findings(
            self.program, profile, reference, timed, selection, captured, reduced, measured, flat, direct,
            self._outputs(),
            self.options.selection.seed, [*self.warnings, *_kept_whole(reduced, self.options.reduce)],
            self.options.external, self.options.compress, self.criu if self.options.with_criu else None,
            warmup.trials,
        )  # fmt: skip
        with self.display.stage("pack") as report:
            manifest, sizes = pack(target, self.folder.path, found)
            report(1.0)
        return BuiltProbe(target, manifest, sizes)

    def _trace(self) -> Profile:
        path = self.folder.file("profile.npz")
        if self.folder.is_finished("trace"):
            profile = replace(load_profile(path), program=self.program)
            check_unchanged(profile)
            return profile
        with self.display.stage("trace"):
            profile = self._traced()
        self._note_written("trace", profile)
        save_profile(profile, path)
        self.folder.finish("trace")
        return profile

    def _notes(self, run: str) -> Path:
        return self.folder.file(f"{run}.files.json")

    def _note_written(self, run: str, profile: Profile) -> None:
        note_written_files(profile.written, self._notes(run))

    def _traced(self) -> Profile:
        streams = output_streams(self.folder.path, "trace")
        try:
            return trace_program(
                self.program, tracer=self.options.tracer, interval=self.options.interval, streams=streams, cpu=self.cpu
            )
        except ProgramFailed as error:
            alone = run_plain(self.program, output_streams(self.folder.path, "alone"), cpu=self.cpu)
            if alone.status:
                raise
            raise Diverged(
                f"{error} Without the tracer it succeeds: it notices that it is traced (it checks its own code?), or "
                "it does not repeat itself."
            ) from error

    def _reference(self, profile: Profile) -> Reference:
        if self.folder.is_finished("reference"):
            return self.folder.read("reference.json", Reference.from_json)
        with self.display.stage("reference") as report:
            reference = measure_reference(
                self.program,
                folder=self.folder.path,
                cpu=self.cpu,
                progress=report,
                after_run=lambda run: self._note_written(run, profile),
            )
        self.folder.write_json("reference.json", reference.to_json())
        self.folder.finish("reference")
        return reference

    def _compare(self, run: str, what: str) -> None:
        def streams(name: str) -> Streams:
            return Streams(self.folder.file(f"{name}.stdout"), self.folder.file(f"{name}.stderr"))

        names = plain_run_names(EARLY_RUNS)
        self.warnings += compare_outputs([streams(name) for name in names], streams(run), what)
        self.warnings += compare_written_files([self._notes(name) for name in names], self._notes(run), what)

    def _compare_trace(self, profile: Profile) -> None:
        """Only natively must a traced run do what plain ones do; where it did not, the timing run has the say.

        Valgrind computes with 64 bits where the x87 has 80, and shows the program another processor.
        """
        try:
            self._compare("trace", "the traced run")
        except Diverged as error:
            if profile.unit == SECONDS:
                raise
            self.warnings.append(str(error))

    def _validate(self, profile: Profile, reference: Reference) -> TimedProfile:
        path = self.folder.file("timing.npz")
        if not self.folder.is_finished("validate"):
            with self.display.stage("validate") as report:
                expected = reference.wall[0]
                timed = validate(
                    profile,
                    streams=output_streams(self.folder.path, "validate"),
                    cpu=self.cpu,
                    progress=lambda seconds: report(seconds / expected),
                    native_seconds=expected,
                )
            self._note_written("validate", profile)
            save_timing(timed, path)
            self.folder.finish("validate")
        timed = load_timing(path)
        self._compare("validate", "the timing run")
        if timed.missing or timed.out_of_order:
            self.warnings.append(
                f"{timed.missing} interval boundaries were not reached and {timed.out_of_order} came out of order in "
                "the timing run; their intervals were joined"
            )
        if timed.shifted:
            self.warnings.append(
                f"{timed.shifted} of {timed.compared} markers were executed a little more or less often natively than "
                f"in the traced run, which moves interval boundaries by less than {MOST_SHIFT:.0%} of an interval"
            )
        return timed

    def _select(self, profile: Profile, timed: TimedProfile, reference: Reference) -> Selection:
        if self.folder.is_finished("select"):
            return self.folder.read("selection.json", Selection.from_json)
        if timed.intervals < 4:
            raise ProgramTooShort(
                f"{self.program.argv[0]}: only {timed.intervals} intervals could be told apart; give it more work "
                "or a shorter --interval"
            )
        eligible = np.ones(timed.intervals, dtype=bool)
        eligible[[0, -1]] = False
        options = self.options
        known = vectors(profile, timed), work(profile, timed), interval_times(timed, reference), eligible
        with self.display.stage("select"):
            if options.points:
                selection, doubts = select_points(options.points, timed.first_row, *known, options.selection)
                self.warnings += doubts
            else:
                selection = select_phases(*known, options.selection)
        self.folder.write_json("selection.json", selection.to_json())
        self.folder.finish("select")
        return selection

    def _warmup(
        self, profile: Profile, timed: TimedProfile, selection: Selection, reference: Reference
    ) -> WarmupChoice:
        if self.options.warmup != AUTO:
            return WarmupChoice(self.options.warmup, ())
        if self.folder.file(WARMUP_FILE).exists():
            choice = self.folder.read(WARMUP_FILE, WarmupChoice.from_json)
        else:
            with self.display.stage("warm-up") as report:
                choice = try_warmups(
                    self.program,
                    profile,
                    timed,
                    selection,
                    reference.clock,
                    criu=self.criu,
                    folder=self.folder.file("warmup"),
                    repeats=self.options.repeats,
                    cpu=self.cpu,
                    progress=report,
                )
            self.folder.write_json(WARMUP_FILE, choice.to_json())
        if choice.doubt:
            self.warnings.append(f"--warmup auto: {choice.doubt}")
        return choice

    def _capture(self, profile: Profile, timed: TimedProfile, selection: Selection, warmup: int) -> list[CapturedPhase]:
        if self.folder.is_finished("capture"):
            return self.folder.read("captured.json", _each(CapturedPhase.from_json))
        with self.display.stage("capture") as report:
            captured = take_checkpoints(
                profile,
                timed,
                plan_regions(profile, timed, selection, warmup),
                criu=self.criu,
                folder=self.folder.path,
                cpu=self.cpu,
                progress=report,
            )
        self.folder.write_json("captured.json", [c.to_json() for c in captured])
        self.folder.finish("capture")
        return captured

    def _outputs(self) -> tuple[str, str]:
        return captured_outputs(self.folder.path)

    def _job(self, phase: CapturedPhase, images: str, timed: TimedProfile) -> RestoreJob:
        return restore_job(self.program, timed, self.folder.path, phase, images)

    def _reduce(self, captured: list[CapturedPhase], timed: TimedProfile) -> list[ReducedPhase]:
        if self.folder.is_finished("reduce"):
            return self.folder.read("reduced.json", _each(ReducedPhase.from_json))
        jobs = [(self._job(p, p.folder, timed), float(timed.seconds[p.interval])) for p in captured]
        with self.display.stage("reduce") as report:
            reduced = reduce_phases(jobs, self.criu, how=self.options.reduce, folder=self.folder.path, progress=report)
        self.folder.write_json("reduced.json", [r.to_json() for r in reduced])
        self.folder.finish("reduce")
        return reduced

    def _flatten(
        self, captured: list[CapturedPhase], reduced: list[ReducedPhase], timed: TimedProfile
    ) -> list[FlatPhase]:
        if self.folder.is_finished("flatten"):
            return self.folder.read("flat.json", _each(FlatPhase.from_json))
        jobs = [(self._job(p, r.folder, timed), p.huge) for p, r in zip(captured, reduced, strict=True)]
        with self.display.stage("flatten") as report:
            flat = flatten_phases(jobs, folder=self.folder.path, cpu=self.cpu, progress=report)
        self.folder.write_json("flat.json", [f.to_json() for f in flat])
        self.folder.finish("flatten")
        return flat

    def _self_check(
        self,
        captured: list[CapturedPhase],
        reduced: list[ReducedPhase],
        flat: list[FlatPhase],
        known: Known,
        early: Reference,
    ) -> tuple[list[MeasuredPhase], list[MeasuredPhase], Reference]:
        """The phases' times as they will be measured elsewhere, in both ways of restoring, and the program's, made by
        turns."""
        phases = []
        for phase, whole, image in zip(captured, reduced, flat, strict=True):
            job = self._job(phase, whole.folder, known.timed)
            phases.append(PhaseToMeasure(job))
            if not image.refused:
                phases.append(PhaseToMeasure(job, DIRECT))
        repeats = self.options.repeats
        runs = SpreadRuns(self.program, self.folder.path, runs=self.options.runs, rounds=repeats, cpu=self.cpu)
        with self.display.stage("self-check") as report:
            done = self_check(
                phases,
                Restorers(restorer(), self.criu),
                runs,
                early,
                known,
                repeats=repeats,
                target_error=self.options.target_error,
                scratch=self.folder.path,
                cpu=self.cpu,
                progress=report,
            )
        if done.narrowed is not None:
            self.display.note(done.narrowed.sentence())
            self.warnings += [done.narrowed.sentence()] if done.narrowed.limit else []
        by_criu, directly = ([m for m in done.measured if m.restorer == name] for name in (CRIU, DIRECT))
        return by_criu, directly, done.reference


def _kept_whole(reduced: list[ReducedPhase], how: Reduction) -> list[str]:
    if how == "none":
        return []
    return [f"phase {r.phase} was kept whole: {r.whole}" for r in reduced if r.whole]


def _each(parse: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    """A stage's result that is a list with one entry for every phase."""

    def parsed(value: Any) -> list[T]:
        if not isinstance(value, list) or not value:
            raise ValueError("not a list of phases")
        return [parse(entry) for entry in value]

    return parsed
