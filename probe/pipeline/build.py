# SPDX-License-Identifier: Apache-2.0
"""Build a probe: the list of stages, and the loop that runs them or takes up what they left."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint.capture.conditions import check_traceable
from checkpoint.compiled import restorer
from checkpoint.criu.tool import Criu, find_criu
from checkpoint.errors import PrivilegeMissing, ProbeError, ProgramUnsupported, StorageError
from checkpoint.made_files import refuse_own, refuse_present
from checkpoint.process.program import Program, check_randomisation_control, resolve_program
from probe.formats.checkpoints import WarmupChoice
from probe.formats.choices import AUTO, SECONDS, unit_of
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, DIRECT
from probe.node.measuring import away_from, measuring_cpu
from probe.pipeline import (
    capture,
    flatten,
    pack,
    reduce,
    reference,
    select,
    self_check,
    synthesize,
    trace,
    validate,
    warmup,
)
from probe.pipeline.options import BuildOptions
from probe.pipeline.outputs import bounded_outputs
from probe.pipeline.runs.environment import scrubbed
from probe.pipeline.runs.given_files import changes_named
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import Build, KeptStage, Stage
from probe.prediction.target_error import check_target_error
from probe.progress import Display, Silent
from probe.work_folder import StageFiles, WorkFolder, work_folder
from reducer.archive import ArchiveSizes
from reducer.compression import check_packing
from reducer.output_file import check_target, full_disk_named

KEPT: tuple[KeptStage, ...] = (trace, validate, reference, select, warmup, capture, reduce, flatten, synthesize)
"""Stages that leave their result in the work folder, in order (but see `_in_order`); warm-up runs where the warm-up is
to be tried, synthesize where data are to be left out."""

ANEW: tuple[Stage, ...] = (self_check, pack)
"""Stages behind them, which every build does, a resumed one too."""

STAGE_FILES = tuple(StageFiles(stage.NAME, stage.FILES, stage.OPTIONS) for stage in KEPT)
_WORTH_AN_END = 60.0
"""Seconds of runs to come from which on it is said until when they last."""

OPTIONS_OF_NO_FILE = tuple(option for stage in ANEW for option in stage.OPTIONS)


def full_runs(options: BuildOptions, plan: FullRuns) -> dict[str, int]:
    """By the names of the stages that make any: how often each runs the whole program."""
    stages = [stage for stage in KEPT if stage is not warmup or options.warmup == AUTO]
    runs = {stage.NAME: stage.runs(plan) for stage in (*stages, *ANEW)}
    return {name: number for name, number in runs.items() if number}


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
    scrub: Sequence[str] = (),
    work: Path | str | None = None,
    resume: bool = False,
    expected: bool = False,
    display: Display | None = None,
) -> BuiltProbe:
    """Trace `argv`, choose its phases, checkpoint them and write the probe to `output` (mode 0600).

    Runs the program in `cwd` (default: here) with environment `env` (default: ours) in full: traced, timed, captured,
    and plainly `options.runs` times between the rounds of the self-check. A program of seconds is run some times more
    (probe.pipeline.runs.plan). It lacks the variables that `scrub` names (probe/pipeline/runs/environment.py). With
    `work` every stage leaves its result there; `resume` goes on after the last finished one, in the environment of that
    build. What `options.makes` names in `cwd` is removed before each run, and must not be there before the first one,
    unless `expected`: an earlier run made it. Needs root for checkpoints by CRIU alone (`options.capture`); as root
    AUTO takes it where direct capture cannot hold the program.

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
    environment = scrubbed(os.environ if env is None else env, scrub)
    program = resolve_program(argv, isa=chosen.isa, stdin=stdin, cwd=cwd, env=environment)
    may_take_criu = chosen.capture == AUTO and not os.geteuid()
    chosen = replace(chosen, capture=capture_here(chosen))
    if chosen.synthetic_budget is not None and not chosen.synthetic_data:
        raise ProbeError("--synthetic-budget: nothing is to be replaced; add --synthetic-data")
    criu = check_machine(target, chosen.capture)
    if chosen.capture == DIRECT:
        check_traceable(program.argv[0], program.executable)
        if chosen.with_criu:
            raise ProbeError("--with-criu: checkpoints that are captured directly are not for CRIU; add --capture criu")
    check_packing(chosen.compress)
    check_target_error(chosen.target_error)
    for name in chosen.external:
        if not Path(name).exists():
            raise ProbeError(f"--external {name}: no such file or folder")
    parameters = {"program": program.to_json(), "options": chosen.to_json()}
    place = Path(work).absolute() if work is not None else None
    program = replace(program, makes=chosen.makes)
    refuse_own(program.cwd, program.makes, (target, place))
    if not expected and not resume:
        refuse_present(program.cwd, program.makes)
    with work_folder(
        place, parameters, resume=resume, stages=STAGE_FILES, concern_no_stage=OPTIONS_OF_NO_FILE,
        # Shells change theirs from one to the next (SHLVL, OLDPWD, SSH_*); what was given on purpose must be the same.
        kept=() if env is not None else ("program.env",),
    ) as folder:  # fmt: skip
        program = _with_environment_of(folder, program, scrub)
        under_way = Build(program, chosen, folder, criu, display or Silent(), target, measuring_cpu(), may_take_criu)
        with (
            away_from(under_way.cpu),
            full_disk_named(folder.path),
            bounded_outputs(folder.path),
            changes_named(program.argv, program.cwd, program.makes) as under_way.given,
        ):
            run_stages(under_way)
    return BuiltProbe(target, under_way.manifest, under_way.sizes)


def _with_environment_of(folder: WorkFolder, program: Program, scrub: Sequence[str]) -> Program:
    """The program in the environment that what is in the folder was made in."""
    stored = folder.parameters["program"]["env"]
    if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
        raise StorageError(f"{folder.path}: its environment is damaged; build without --resume")
    if left := sorted(stored.keys() - scrubbed(stored, scrub).keys()):
        raise ProbeError(
            f"{folder.path}: was begun with {', '.join(left)} in the environment, which --scrub-env takes out now: the "
            "checkpoints there may hold it; build without --resume"
        )
    return replace(program, env=stored)


def capture_here(options: BuildOptions) -> str:
    """How checkpoints are captured, CRIU or DIRECT, where the choice may be AUTO."""
    if options.capture != AUTO:
        return options.capture
    return CRIU if options.with_criu and not os.geteuid() else DIRECT


def check_machine(target: Path, capture: str) -> Criu | None:
    """The CRIU to build with, None without. Raises StorageError, PrivilegeMissing, CriuError, ToolMissing."""
    check_target(target)
    check_randomisation_control()
    if capture != DIRECT and os.geteuid() != 0:
        raise PrivilegeMissing(
            "--capture criu needs root for its checkpoints: run it as root or with `sudo -n`, or leave it out"
        )
    # Every probe carries it: that it cannot be made is better known before the program runs.
    restorer()
    return None if capture == DIRECT else find_criu()


def run_stages(build: Build) -> None:
    """Run every stage that is not finished, and load the others."""
    wanted = build.options.warmup
    if wanted != AUTO:
        build.warmup = WarmupChoice(wanted, ())
    for stage in _in_order(build):
        if (stage is warmup and wanted != AUTO) or (stage is synthesize and not build.options.synthetic_data):
            continue
        if build.folder.is_finished(stage.NAME):
            stage.load(build)
        else:
            begun = time.monotonic()
            _run(stage, build)
            stage.save(build)
            build.folder.finish(stage.NAME, time.monotonic() - begun)
            if stage is (trace if build.profile.unit == SECONDS else reference):
                build.display.note(_runs_to_come(build))
        build.warnings += stage.doubts(build)
    for fresh in ANEW:
        _run(fresh, build)
        build.warnings += fresh.doubts(build)


def _in_order(build: Build) -> Iterator[KeptStage]:
    """The stages as this build needs them: plain runs are for times and outputs alone, so they come behind the timing
    run, which may refuse the program. Of an exact trace only a plain run tells how long the program takes."""
    yield trace
    plain_first = build.profile.unit != SECONDS
    if not plain_first:
        build.reference = reference.seen_in_trace(build.profile)
    yield from (reference, validate) if plain_first else (validate, reference)
    yield from KEPT[3:]


def _runs_to_come(build: Build) -> str:
    known = build.profile.unit != SECONDS
    each = statistics.median((build.reference if known else reference.seen_in_trace(build.profile)).wall)
    left = sum(n for name, n in full_runs(build.options, build.plan).items() if not build.folder.is_finished(name))
    said = f"{left} more runs of the program, some {each:.1f} s each: {left * each:.0f} s, and what the phases take"
    if left * each < _WORTH_AN_END:
        return said
    return f"{said}; not over before {time.strftime('%H:%M', time.localtime(time.time() + left * each))}"


def _run(stage: Stage, build: Build) -> None:
    try:
        with build.display.stage(stage.NAME) as report:
            stage.run(build, report)
    except ProgramUnsupported as error:
        if not error.for_criu or not build.may_take_criu or build.criu is not None:
            raise
        _go_over_to_criu(build, error)
        with build.display.stage(stage.NAME) as report:
            stage.run(build, report)


def _go_over_to_criu(build: Build, refusal: ProgramUnsupported) -> None:
    """Let CRIU take the checkpoints from here on. Raises `refusal` where there is none."""
    try:
        build.criu = find_criu()
    except ProbeError as error:
        raise ProgramUnsupported(f"{refusal}; and {error}") from error
    said = f"checkpoints are captured by CRIU: the program holds {refusal.for_criu}"
    build.display.note(said)
    build.notes.append(said)
