# SPDX-License-Identifier: Apache-2.0
"""Running a probe on this machine and predicting the whole program's time here."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from checkpoint.compiled import restorer_bytes
from checkpoint.errors import ProbeError, ToolMissing
from probe.candidates.result import RunResult, _predicted, check_coverage
from probe.candidates.wanted_width import FirstRounds, WantedWidth
from probe.formats.manifest import Manifest
from probe.node.facts import available_memory, check_node, memory_needed, where_measured
from probe.node.files import check_external, differing_files
from probe.node.machine_lock import measuring_alone
from probe.node.measuring import (
    DEFAULT_REPEATS,
    MeasuredPhase,
    away_from,
    check_processors,
    measure_phases,
    measuring_cpu,
)
from probe.node.phases import AUTO, phases_here, restorers_here
from probe.node.quietness import QuietJudge
from probe.node.yardsticks import Yardsticks
from probe.prediction.estimators import Prediction
from probe.progress import Display, Silent
from reducer.output_file import full_disk_named
from reducer.unpack import open_probe

_NO_RESTORER = (
    "{}; without a C compiler there is no direct restorer but the probe's own: install gcc, or, if you trust the "
    "probe's author, give --carried-restorer"
)
_WAITING = "waiting for another measurement on this node: {}"


def own_restorer() -> bytes:
    """This installation's direct restorer; ToolMissing where it cannot be compiled."""
    try:
        return restorer_bytes()
    except ToolMissing as error:
        raise ToolMissing(_NO_RESTORER.format(error)) from error


_READING = 0.05
"""Seconds that yardsticks take after a repeat on a busy machine (docs/estimators.md)."""


_ROOM = 96 << 20
"""Bytes that yardsticks take: what they copy, and Python."""


def seconds_of_a_round(manifest: Manifest) -> float:
    """What one repeat of every phase takes on the reference node, restoring left out."""
    return sum(phase.expected_seconds for phase in manifest.phases if phase.can_run)


def _readings_of_a_round(manifest: Manifest) -> float:
    """Seconds that yardsticks take in one repeat of every phase."""
    return _READING * sum(1 for phase in manifest.phases if phase.can_run)


def _yardsticks_beside(manifest: Manifest, cpu: int | None) -> AbstractContextManager[Yardsticks | None]:
    """Yardsticks, where memory is left for them beside the largest phase."""
    available = available_memory()
    fits = available is None or available >= memory_needed(manifest) + _ROOM
    return Yardsticks(cpu) if fits else nullcontext()


def run(
    path: Path | str,
    *,
    repeats: int = DEFAULT_REPEATS,
    min_coverage: float | None = None,
    restorer: str = AUTO,
    carried_restorer: bool = False,
    only_recorded_calls: bool = False,
    touch_in_order: bool = False,
    target_error: float | None = None,
    budget: float | None = None,
    best_effort: bool = False,
    display: Display | None = None,
) -> RunResult:
    """Restore and time every phase of the probe at `path` here, `repeats` times each, and predict.

    `restorer`: DIRECT, which any user may; CRIU, which needs root; or AUTO, which takes DIRECT, and CRIU for phases
    that DIRECT refuses. `carried_restorer`: DIRECT is the program that the probe carries, code of the probe's author,
    and not this installation's own. `only_recorded_calls`: end a phase at the first system call that it did not make
    when the probe was built (DIRECT alone). `touch_in_order`: touch the pages it needs in recorded order first.
    `target_error`: relative half width that the interval should have; phases are timed more often until it has, or
    until that can no longer help (`RunResult.narrowed`). `budget`: seconds that timing the phases may take in all; then
    `repeats` are a beginning, and the half width aimed at is DEFAULT_TARGET where no other is given. `best_effort`:
    nobody asked for that budget, and `repeats` rounds are made whatever it is.

    Everything in the file is checked before anything is restored. Raises ProbeFileDamaged, NodeUnfit, NodeBusy,
    PrivilegeMissing, CriuError, StorageError; PhaseFailed where so many phases failed that nothing can be predicted,
    NoPrediction where `min_coverage` is more than the probe has,
    Unpredictable where other work had most of the processor.
    """
    probe_path = Path(path)
    if repeats < 1:
        raise ProbeError("--repeat: at least one repeat is needed")
    wanted = WantedWidth(target_error, budget, best_effort)
    shown = display or Silent()
    with full_disk_named(Path(tempfile.gettempdir())), open_probe(probe_path) as archive:
        manifest = Manifest.from_json(archive.manifest)
        check_coverage(manifest, min_coverage)
        check_node(manifest)
        check_processors(str(probe_path), manifest.threads, None)
        with shown.stage("check") as report:
            archive.verify()
            check_external(manifest.files.external)
            differing = differing_files(archive.files)
            report(1.0)
        cpu = measuring_cpu()
        with (
            measuring_alone(os.sched_getaffinity(0), waiting=lambda holder: shown.note(_WAITING.format(holder))),
            tempfile.TemporaryDirectory(prefix="probe-run-") as folder,
            shown.stage("run") as report,
            away_from(cpu),
            _yardsticks_beside(manifest, cpu) as yardsticks,
        ):
            restorers = restorers_here(
                archive, Path(folder), restorer, own_restorer=own_restorer, carried_restorer=carried_restorer,
                only_recorded_calls=only_recorded_calls, touch_in_order=touch_in_order,
            )  # fmt: skip
            phases = phases_here(archive, manifest, Path(folder), restorers, differing)
            judge = QuietJudge(manifest, cpu)

            measure = partial(
                measure_phases, phases, restorers, scratch=Path(folder), cpu=cpu, judge=judge, yardsticks=yardsticks
            )

            def first(count: int) -> FirstRounds:
                begun = time.monotonic()
                return FirstRounds(measure(repeats=count, progress=report), time.monotonic() - begun)

            def again(count: int) -> list[MeasuredPhase]:
                return measure(repeats=count, progress=lambda _: None, least=0)

            def predicted(measured: list[MeasuredPhase]) -> Prediction:
                return _predicted(manifest, measured, min_coverage)

            rounds = wanted.rounds(repeats, seconds_of_a_round(manifest) + _readings_of_a_round(manifest))
            measured, narrowed = wanted.reach(rounds, first=first, again=again, predicted=predicted)
    return RunResult(str(probe_path), manifest, where_measured(), tuple(measured), predicted(measured), narrowed)
