# SPDX-License-Identifier: Apache-2.0
"""Trace the program into a profile: the first stage of a build, and a command of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from checkpoint.errors import Diverged, ProgramFailed, ProgramUnsupported
from checkpoint.process.children import shortened
from checkpoint.process.isa import DEFAULT_ISA
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Worker, resolve_program
from probe.formats.choices import NATIVE
from probe.formats.profile import Profile, load_profile, save_profile
from probe.node.files import file_sha256
from probe.node.measuring import away_from, measuring_cpu
from probe.pipeline.outputs import bounded_outputs, note_run, output_streams
from probe.pipeline.stage import Build
from probe.pipeline.work_folder import work_folder
from probe.progress import Display, Report, Silent
from probe.tracers import trace_program
from probe.tracers.lives import WorkedByChildren
from probe.tracers.worker import WorkerChoice, find_worker, is_wrapper
from reducer.output_file import check_target, full_disk_named

NAME = "trace"
OPTIONS: tuple[str, ...] = ()
FILES = ("profile.npz", "worker.json", "find-worker.*", "trace.stdout", "trace.stderr", "trace.files.json")

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
            profile = trace_program(program, tracer=tracer, interval=interval, streams=streams, cpu=cpu)
        save_profile(profile, target)
    return profile


def run(build: Build, report: Report) -> None:
    """Trace once, the worker where the program is a wrapper. Raises what the tracer raises; Diverged where the program
    fails under the tracer alone."""
    choice = WorkerChoice(build.options.program, build.options.worker)
    native = build.options.tracer in ("auto", NATIVE)
    if choice.given or (native and is_wrapper(build.program)):
        _find_worker(build, choice)
    try:
        _trace(build)
    except WorkedByChildren:
        if choice.given or build.program.worker is not None:
            raise
        _find_worker(build, choice)
        if build.program.worker is None:
            raise
        _trace(build)


def _find_worker(build: Build, choice: WorkerChoice) -> None:
    if build.options.tracer not in ("auto", NATIVE):
        raise ProgramUnsupported(
            f"{build.program.argv[0]}: a wrapper, whose worker the native tracer alone finds; give the worker itself, "
            "or --tracer native"
        )
    streams = output_streams(build.folder.path, "find-worker")
    build.program = replace(build.program, worker=find_worker(build.program, streams, choice, cpu=build.cpu))


def _trace(build: Build) -> None:
    folder, chosen = build.folder.path, build.options
    streams = output_streams(folder, NAME)
    try:
        build.profile = trace_program(
            build.program, tracer=chosen.tracer, interval=chosen.interval, streams=streams, cpu=build.cpu
        )
    except ProgramFailed as error:
        alone = run_plain(build.program, output_streams(folder, "alone"), cpu=build.cpu)
        if alone.status:
            raise
        raise Diverged(
            f"{error} Without the tracer it succeeds: it notices that it is traced (it checks its own code?), or "
            "it does not repeat itself."
        ) from error
    note_run(folder, NAME, build.profile.written)


def save(build: Build) -> None:
    if build.program.worker is not None:
        build.folder.write_json(_WORKER, build.program.worker.to_json())
    save_profile(build.profile, build.folder.file(_PROFILE))


def load(build: Build) -> None:
    if build.folder.file(_WORKER).exists():
        build.program = replace(build.program, worker=build.folder.read(_WORKER, Worker.from_json))
    build.profile = replace(load_profile(build.folder.file(_PROFILE)), program=build.program)
    check_unchanged(build.profile)


def doubts(build: Build) -> list[str]:
    """None: the reference stage compares what the traced run did with plain runs. Notes the worker, and what was not
    counted."""
    worker = build.program.worker
    if worker is not None:
        build.notes.append(f"{build.program.argv[0]} is a wrapper: the process probed is {shortened(worker.argv)}")
    if build.profile.thin:
        build.notes.append(
            f"only {build.profile.counted_share:.0%} of the instructions were counted, the rest ran too often: "
            "there is no direct estimate"
        )
    return []


def check_unchanged(profile: Profile) -> None:
    """Raise Diverged where the program, or a library it was traced with, is not the file it was."""
    for path, sha256 in profile.images:
        try:
            same = file_sha256(Path(path)) == sha256
        except OSError:
            same = False
        if not same:
            raise Diverged(f"{path}: changed since it was traced; build the probe again")
