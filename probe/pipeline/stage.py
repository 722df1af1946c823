# SPDX-License-Identifier: Apache-2.0
"""The contract of a stage, and the build that stages hand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from checkpoint.criu.tool import Criu
from checkpoint.process.program import Program
from probe.flow.stored import PhaseFlow
from probe.formats.checkpoints import CapturedPhase, EarlyCheckpoints, FlatPhase, ReducedPhase, WarmupChoice
from probe.formats.manifest import Manifest
from probe.formats.phase_record import Synthetic
from probe.formats.profile import Profile
from probe.formats.reference import Reference
from probe.formats.selection import Selection
from probe.formats.timing import TimedProfile
from probe.node.measuring import MeasuredPhase
from probe.pipeline.options import BuildOptions
from probe.pipeline.runs.given_files import GivenFiles
from probe.pipeline.runs.plan import FullRuns, full_runs_of
from probe.prediction.target_error import Narrowed
from probe.progress import Display, Report
from probe.work_folder import WorkFolder
from reducer.archive import ArchiveSizes
from reducer.kept_pages import KeptPages

LEAST_COVERAGE = 0.9
"""Share of the time that the restored phases must hold, or there is no probe."""


@dataclass
class Build:
    """One build under way: what was asked for, and what its stages have found so far.

    Without `criu` checkpoints are captured, observed and restored directly; `may_take_criu`: where direct capture
    cannot hold the program, CRIU may take its checkpoints instead. A stage sets the fields below `notes` that
    bear its name in the comment, whether it ran or was loaded.
    """

    program: Program
    options: BuildOptions
    folder: WorkFolder
    criu: Criu | None
    display: Display
    target: Path
    cpu: int | None
    may_take_criu: bool = False
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    given: GivenFiles = field(default_factory=GivenFiles)

    profile: Profile = field(init=False)  # trace
    reference: Reference = field(init=False)  # reference; self-check puts its own runs in
    timed: TimedProfile = field(init=False)  # validate
    early: EarlyCheckpoints | None = None  # validate, where the timing run took checkpoints
    joined: int = 1  # select; so many of the traced intervals are one from here on, in `profile` and `timed`
    selection: Selection = field(init=False)  # select
    warmup: WarmupChoice = field(init=False)  # warm-up, or the number asked for
    kept: KeptPages | None = None  # capture, or validate; where the pages of its phases go
    captured: Sequence[CapturedPhase] = field(init=False)  # capture
    reduced: Sequence[ReducedPhase] = field(init=False)  # reduce; phases in the order of `captured`
    flat: Sequence[FlatPhase] = field(init=False)  # flatten; likewise
    flow: dict[int, PhaseFlow] = field(default_factory=dict)  # flatten, by phase; empty if it was not wanted
    flatten_seconds: tuple[float, float] = (0.0, 0.0)  # flatten: for images, and for the flow
    synthetic: dict[int, Synthetic] = field(default_factory=dict)  # synthesize, by phase; empty if it was not wanted
    own_data: Sequence[ReducedPhase] = ()  # synthesize; what `reduced` was before
    measured: Sequence[MeasuredPhase] = field(init=False)  # self-check: each phase in every way of restoring
    between: int = 0  # self-check; plain runs made between its rounds
    narrowed: Narrowed | None = field(init=False)  # self-check, where a width was wanted
    manifest: Manifest = field(init=False)  # pack
    sizes: ArchiveSizes = field(init=False)  # pack

    def planned(self) -> FullRuns | None:
        """How often the traced program is run; None where its first plain run has to tell how long it takes."""
        apart = self.options.captures_apart or self.criu is not None
        return full_runs_of(self.profile, getattr(self, "reference", None), self.options.runs, apart=apart)

    @property
    def plan(self) -> FullRuns:
        """The same where it is known: from the reference stage on, or for a native trace from its end."""
        plan = self.planned()
        assert plan is not None
        return plan


class Stage(Protocol):
    """A module of this folder that is one stage of a build."""

    @property
    def NAME(self) -> str:
        """The stage's name on the terminal and in the work folder."""

    @property
    def OPTIONS(self) -> tuple[str, ...]:
        """Build options that concern this stage before any other; an option of no stage concerns the first."""

    def runs(self, plan: FullRuns, /) -> int:
        """Full runs of the program that the stage makes, if nothing has to be done twice."""

    def run(self, build: Build, report: Report) -> None:
        """Do the stage's work and set its fields of `build`; `report` gets the share done, 0 to 1."""

    def doubts(self, build: Build) -> list[str]:
        """Warnings about the stage's result, loaded or fresh. Raises where the result cannot be used."""


class KeptStage(Stage, Protocol):
    """A stage whose result stays in the work folder, so that a build can go on behind it."""

    @property
    def FILES(self) -> tuple[str, ...]:
        """Patterns of all that the stage leaves in the work folder."""

    def save(self, build: Build) -> None:
        """Write the stage's fields of `build` to the work folder."""

    def load(self, build: Build) -> None:
        """Set them from the work folder. Raises StorageError where a file is damaged or gone."""
