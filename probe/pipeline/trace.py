# SPDX-License-Identifier: Apache-2.0
"""Trace the program into a profile: the first stage of a build, and a command of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from checkpoint.binary.elf import needed_libraries
from checkpoint.binary.isa import DEFAULT_ISA
from checkpoint.capture.conditions import check_traceable
from checkpoint.errors import Diverged, ProgramFailed, ProgramUnsupported
from checkpoint.process.children import shortened
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Program, Worker, resolve_program
from checkpoint.process.threads import WorkingThreads
from probe.formats.choices import NATIVE
from probe.formats.profile import Profile, load_profile, save_profile
from probe.node.files import file_sha256
from probe.node.measuring import away_from, check_processors, measuring_cpu
from probe.pipeline.outputs import bounded_outputs, note_run, output_streams
from probe.pipeline.runs.plan import FullRuns
from probe.pipeline.stage import Build
from probe.progress import Display, Report, Silent
from probe.tracers import trace_program
from probe.tracers.lives import WorkedByChildren
from probe.tracers.team import OthersMark
from probe.tracers.worker import WorkerChoice, find_worker, is_wrapper
from probe.work_folder import work_folder
from reducer.output_file import check_target, full_disk_named

NAME = "trace"
OPTIONS: tuple[str, ...] = ()
FILES = ("profile.npz", "worker.json", "find-worker.*", "trace.stdout", "trace.stderr", "trace.files.json")

_OPENMP = ("libgomp", "libomp", "libiomp")

_Traced = TypeVar("_Traced")

_PROFILE, _WORKER = "profile.npz", "worker.json"


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
        streams = output_streams(folder.path, NAME)
        with (
            away_from(cpu),
            (display or Silent()).stage(NAME),
            full_disk_named(folder.path),
            bounded_outputs(folder.path),
        ):
            traced = partial(trace_program, tracer=tracer, interval=interval, streams=streams, cpu=cpu)
            try:
                profile = traced(program)
            except WorkingThreads as error:
                profile = _with_its_threads(program, tracer, error, cpu, traced)
        save_profile(profile, target)
    return profile


def runs(_plan: FullRuns) -> int:
    """The counted run; a wrapper is run once more, to find its worker."""
    return 1


def run(build: Build, report: Report) -> None:
    """Trace once, the worker where the program is a wrapper. Raises what the tracer raises; Diverged where the program
    fails under the tracer alone.

    A program that leaves the work to children at its beginning is looked at as a wrapper right then. Where it does most
    of the work itself, as that look shows, it is traced to its end.
    """
    choice = WorkerChoice(build.options.program, build.options.worker)
    native = build.options.tracer in ("auto", NATIVE)
    if choice.given or (native and is_wrapper(build.program)):
        _find_worker(build, choice)
    may_be_wrapper = not choice.given and build.program.worker is None
    try:
        _trace_with_threads(build, soon=may_be_wrapper)
    except WorkedByChildren as error:
        if not may_be_wrapper:
            raise
        # Threads that were found are the wrapper's own.
        build.program = replace(build.program, threads=1, marking=())
        _find_worker(build, choice)
        if build.program.worker is None and not error.so_far:
            raise
        _trace_with_threads(build)


def _trace_with_threads(build: Build, *, soon: bool = False) -> None:
    """Trace, and once more where threads turn out to share the work. Raises ProgramUnsupported where the program
    cannot be probed with them. `soon`: as in trace_program."""

    def traced(program: Program) -> None:
        build.program = program
        _trace(build)

    try:
        _trace(build, soon=soon)
        return
    except WorkingThreads as error:
        found = error
    _with_its_threads(build.program, build.options.tracer, found, build.cpu, traced)
    build.program = build.profile.program
    check_processors(build.program.argv[0], build.program.threads, build.cpu)


def _with_its_threads(
    program: Program, tracer: str, found: WorkingThreads, cpu: int | None, traced: Callable[[Program], _Traced]
) -> _Traced:
    """What `traced` finds of the program with its threads; with other marking threads where the first one waits."""
    program = with_threads(program, tracer, found, cpu)
    try:
        return traced(program)
    except OthersMark as error:
        check_processors(program.argv[0], error.program.threads, cpu)
        return traced(error.program)


def trace_with_others(build: Build) -> None:
    """Where the first thread tells too few places, or a later run was not where the traced one had been by these: trace
    once more, with places of those that could mark. Errors as in `run`."""
    build.display.note(f"{build.program.argv[0]}: its first thread tells too few places: it is traced once more")
    trace_again(build, replace(build.program, marking=build.profile.could_mark))


def trace_again(build: Build, program: Program) -> None:
    """Trace `program`, in place of what was traced. Errors as in `run`."""
    replaced = _notes(build)
    build.program = program
    _trace(build)
    build.program = build.profile.program
    check_processors(build.program.argv[0], build.program.threads, build.cpu)
    build.notes = [note for note in build.notes if note not in replaced] + _notes(build)
    save(build)


def with_threads(program: Program, tracer: str, found: WorkingThreads, cpu: int | None) -> Program:
    """The program as one whose threads share the work, as was found out. Raises `found` where the tracer cannot follow
    them, NodeUnfit where there are too few processors for them."""
    if tracer not in ("auto", NATIVE):
        raise found
    check_processors(program.argv[0], found.threads, cpu)
    return replace(program, threads=found.threads)


def _find_worker(build: Build, choice: WorkerChoice) -> None:
    if build.options.tracer not in ("auto", NATIVE):
        raise ProgramUnsupported(
            f"{build.program.argv[0]}: a wrapper, whose worker the native tracer alone finds; give the worker itself, "
            "or --tracer native"
        )
    streams = output_streams(build.folder.path, "find-worker")
    worker = find_worker(build.program, streams, choice, cpu=build.cpu)
    if worker is not None and build.criu is None:
        check_traceable(build.program.argv[0], worker.executable)
    build.program = replace(build.program, worker=worker)


def _trace(build: Build, *, soon: bool = False) -> None:
    folder, chosen = build.folder.path, build.options
    streams = output_streams(folder, NAME)
    try:
        build.profile = trace_program(
            build.program, tracer=chosen.tracer, interval=chosen.interval, streams=streams, cpu=build.cpu, soon=soon
        )
    except ProgramFailed as error:
        alone = run_plain(build.program, output_streams(folder, "alone"), cpu=build.cpu)
        if alone.status:
            raise
        if not build.program.reads_calls and chosen.tracer in ("auto", NATIVE):
            said = "it ended early while its calls were redirected: it is traced once more, with its calls as they are"
            build.display.note(f"{build.program.argv[0]}: {said}")
            build.program = replace(build.program, reads_calls=True)
            _trace(build, soon=soon)
            return
        raise Diverged(
            f"{error} Without the tracer it succeeds: it notices that it is traced (it checks its own code?), or "
            "it does not repeat itself."
        ) from error
    note_run(folder, NAME, build.profile.written)
    found = build.profile.program
    build.program = replace(build.program, choosing=found.choosing, began=found.began)
    _capture_threads_directly(build)


def _capture_threads_directly(build: Build) -> None:
    """A process with waiting threads is captured without them, which CRIU cannot; and one whose threads share the work
    is captured directly alone. Raises ProgramUnsupported."""
    started = build.profile.helper_threads or build.profile.first is not None
    if started and build.options.with_criu:
        raise ProgramUnsupported(
            f"{build.program.argv[0]}: starts threads, and CRIU would restore them; leave --with-criu out"
        )
    build.may_take_criu = build.may_take_criu and not started
    if started and build.criu is not None:
        said = "threads beside the first: checkpoints are captured directly, since CRIU captures no threads for a probe"
        build.display.note(f"{build.program.argv[0]}: {said}")
        build.notes.append(said)
        build.criu = None


def save(build: Build) -> None:
    if build.program.worker is not None:
        build.folder.write_json(_WORKER, build.program.worker.to_json())
    save_profile(build.profile, build.folder.file(_PROFILE))


def load(build: Build) -> None:
    if build.folder.file(_WORKER).exists():
        build.program = replace(build.program, worker=build.folder.read(_WORKER, Worker.from_json))
    profile = load_profile(build.folder.file(_PROFILE))
    found = profile.program
    build.program = replace(
        build.program,
        threads=found.threads,
        marking=found.marking,
        choosing=found.choosing,
        seed=found.seed,
        began=found.began,
    )
    build.profile = replace(profile, program=build.program)
    check_unchanged(build.profile)
    _capture_threads_directly(build)


def doubts(build: Build) -> list[str]:
    """None: the reference stage compares what the traced run did with plain runs. Notes the worker, and what was not
    counted."""
    build.notes += _notes(build)
    if build.program.threads > 1 or "OMP_NUM_THREADS" in build.program.env or not _uses_openmp(build.program):
        return []
    return [
        f"{build.program.argv[0]}: is linked with OpenMP and ran with one thread, since its runs get one processor: to "
        "probe it with more, set OMP_NUM_THREADS"
    ]


def _notes(build: Build) -> list[str]:
    profile, worker, found = build.profile, build.program.worker, []
    if worker is not None:
        found.append(f"{build.program.argv[0]} is a wrapper: the process probed is {shortened(worker.argv)}")
    if profile.helper_threads:
        found.append(
            f"{profile.helper_threads} threads were seen beside the first one: they wait, and no phase holds them"
        )
    if profile.uncounted:
        found.append(
            f"nothing was counted in {', '.join(profile.uncounted)}: there is no room for counters within 2 GB of it; "
            "phases that differ in nothing else are told apart by their times alone"
        )
    if profile.is_random:
        found.append(
            "it draws random numbers: they are the same in every run of the build, and in the phases; with others it "
            "may take another time"
        )
    if build.program.threads > 1:
        found.append(
            f"{build.program.threads} threads share the work: every run, and every node, needs as many processors, and "
            "times are wall times"
        )
    if build.program.marking:
        found.append("the first thread tells too few places: others tell them in its stead")
    if profile.thin:
        found.append(
            f"only {profile.counted_share:.0%} of the instructions were counted, the rest ran too often: there is no "
            "direct estimate"
        )
    return found


def _uses_openmp(program: Program) -> bool:
    """Whether the executable names an OpenMP library among those it needs."""
    return any(name.startswith(_OPENMP) for name in needed_libraries(Path(program.probed_executable)))


def check_unchanged(profile: Profile) -> None:
    """Raise Diverged where the program, or a library it was traced with, is not the file it was."""
    for path, sha256 in profile.images:
        try:
            same = file_sha256(Path(path)) == sha256
        except OSError:
            same = False
        if not same:
            raise Diverged(f"{path}: changed since it was traced; build the probe again")
