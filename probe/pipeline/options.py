# SPDX-License-Identifier: Apache-2.0
"""Options of a build."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from checkpoint.binary.isa import DEFAULT_ISA
from probe.formats.choices import AUTO, DEFAULT_WARMUP, SelectionOptions
from probe.formats.phase_record import CRIU
from probe.node.measuring import DEFAULT_REPEATS
from probe.selection.simpoint import Point
from reducer.choices import Compression, Reduction


@dataclass(frozen=True)
class BuildOptions:
    """All choices of a build. `interval` in the tracer's unit (None: its default); `warmup` in intervals;
    AUTO: as few as do (probe.pipeline.warmup). `runs`: plain runs between the rounds of the self-check (None: by the
    program's length, probe.pipeline.runs.plan).

    `external`: files, or folders of files, that are left out and that every node must have. `with_criu`: carry CRIU
    along, for nodes that have none. `points`: the intervals to represent the run by, chosen elsewhere
    (probe.selection.simpoint); needs an instruction-exact tracer. `target_error`: relative half width of the interval
    that a prediction for this node should have; the self-check then repeats more often, for at most `budget` seconds
    (None: as long as the build took so far). `best_effort`: not reaching it is a note, and no warning, and a build
    takes no longer for it than people wait (probe.pipeline.self_check). `capture`: DIRECT, CRIU, or AUTO:
    directly, as root by CRIU where that cannot hold the program, or with `with_criu`. `program`, `worker`: which of a
    wrapper's processes is probed, by what it executes or by its number (probe.tracers.worker). `flow`: record what
    each phase executes, for `probe check`. `synthetic_data`: leave out contents of memory that a phase's time does not
    depend on, for which `synthetic_budget` seconds may be spent (None: with recording the flow, half of the
    build's time, and what packing less saves). `makes`: patterns of files in the program's folder that no run is to
    find there (checkpoint.made_files).
    """

    tracer: str = "auto"
    interval: float | None = None
    warmup: int | Literal["auto"] = DEFAULT_WARMUP
    isa: str = DEFAULT_ISA
    runs: int | None = None
    repeats: int = DEFAULT_REPEATS
    reduce: Reduction = "drop"
    external: tuple[str, ...] = ()
    compress: Compression = "gzip"
    with_criu: bool = False
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    points: tuple[Point, ...] = ()
    target_error: float | None = None
    budget: float | None = None
    best_effort: bool = False
    capture: str = AUTO
    program: str | None = None
    worker: int | None = None
    flow: bool = False
    synthetic_data: bool = False
    synthetic_budget: float | None = None
    makes: tuple[str, ...] = ()

    @property
    def captures_apart(self) -> bool:
        """Whether checkpoints have to be taken in a run of their own, behind the timing run: by CRIU, of points that
        were chosen elsewhere, or with a warm-up that is still to be tried."""
        return self.capture == CRIU or bool(self.points) or self.warmup == AUTO

    @property
    def records_flow(self) -> bool:
        """Synthetic memory is verified by the flow, whether or not the probe carries it."""
        return self.flow or self.synthetic_data

    def to_json(self) -> dict[str, Any]:
        """What the stages in the work folder depend on: what concerns packing alone may differ when a build resumes."""
        chosen = {
            k: v for k, v in vars(self).items() if k not in ("external", "compress", "with_criu", "flow", "makes")
        }
        chosen["records_flow"] = self.records_flow
        if self.makes:
            chosen["makes"] = list(self.makes)
        return {**chosen, "selection": vars(self.selection), "points": [vars(p) for p in self.points]}
