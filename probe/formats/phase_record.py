# SPDX-License-Identifier: Apache-2.0
"""A phase as the manifest has it: what it stands for, its times on the reference node, its checkpoint."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from probe.formats.checked import (
    ADDRESS,
    AMOUNT,
    COUNT,
    MOST_NUMBER,
    NUMBER,
    PART,
    SECONDS,
    SHARE,
    SPREAD,
    TEXT,
    TIME,
    many,
    optional,
    record,
    whole,
)
from probe.formats.kernel_time import KernelShare, kernel_share

DIRECT, CRIU = "direct", "criu"
"""The two ways to restore a phase."""

NO_CRIU_IMAGES = "captured without CRIU"
"""`failure` of the way by CRIU, of a phase that has no images for it."""


@dataclass(frozen=True)
class Times:
    """A phase on the reference node, restored in one way. Seconds; sequences hold one value per repeat.

    wall, cpu   the region; empty where it could not be restored, `failure` says why
    warm        the warm-up, median
    kernel      CPU seconds of the region in the kernel (probe/formats/kernel_time.py); empty if it was not stamped
    faults      page faults in the region, median; None if not counted
    yardsticks  CPU seconds of each known work after each repeat (probe/node/yardsticks.py); empty if not read
    """

    wall: tuple[float, ...] = field(default=(), metadata=many(TIME))
    cpu: tuple[float, ...] = field(default=(), metadata=many(TIME))
    warm: float = field(default=0.0, metadata=SECONDS)
    kernel: tuple[float, ...] = field(default=(), metadata=many(SECONDS))
    faults: int | None = field(default=None, metadata=optional(COUNT))
    failure: str = field(default="", metadata=TEXT)
    yardsticks: tuple[tuple[float, ...], ...] = field(default=(), metadata=many(many(TIME)))

    def flaw(self) -> str:
        if len(self.yardsticks) not in (0, len(self.wall)):
            return "not as many readings of yardsticks as wall times"
        if len(self.cpu) != len(self.wall) or len(self.kernel) not in (0, len(self.wall)):
            return "not as many cpu and kernel times as wall times"
        return ""

    def by(self, clock: str) -> tuple[float, ...]:
        """The region by that clock, "cpu" or "wall"."""
        return self.cpu if clock == "cpu" else self.wall

    def in_kernel(self) -> KernelShare | None:
        """Share of the region's CPU time in the kernel."""
        return kernel_share(self.kernel, self.cpu)


@dataclass(frozen=True)
class InRun:
    """A phase in the timing run. Seconds.

    started     when the region began
    wall, cpu   the region
    kernel, kernel_error   share of the phase's CPU time in the kernel, all its intervals taken together, and its
                standard error; None if it was not stamped
    """

    started: float = field(metadata=SECONDS)
    wall: float = field(metadata=SECONDS)
    cpu: float = field(metadata=SECONDS)
    kernel: float | None = field(default=None, metadata=optional(SHARE))
    kernel_error: float | None = field(default=None, metadata=optional(SHARE))

    def flaw(self) -> str:
        return "a share in the kernel without its error" if (self.kernel is None) != (self.kernel_error is None) else ""

    def by(self, clock: str) -> float:
        """The region by that clock, "cpu" or "wall"."""
        return self.cpu if clock == "cpu" else self.wall


@dataclass(frozen=True)
class Events:
    """Addresses of a phase's event records (checkpoint/stubs/stubs.S): begin of the warm-up, of the region, its end."""

    warm: int = field(metadata=ADDRESS)
    start: int = field(metadata=ADDRESS)
    end: int = field(metadata=ADDRESS)


@dataclass(frozen=True)
class CheckpointRecord:
    """A phase's checkpoint: bytes and pages as CRIU wrote it, pages in the probe, pages that the phase touches.

    `whole` says why it was not reduced ("" if it was).
    """

    raw_pages: int = field(metadata=COUNT)
    kept_pages: int = field(metadata=COUNT)
    touched_pages: int = field(metadata=COUNT)
    whole: str = field(default="", metadata=TEXT)
    raw_bytes: int = field(default=0, metadata=COUNT)

    def pages(self) -> dict[str, int]:
        """As JSON (docs/json.md)."""
        return {"raw": self.raw_pages, "kept": self.kept_pages, "touched": self.touched_pages}


@dataclass(frozen=True)
class ReplacedMapping:
    """Mappings of one file or kind: their pages, 64-bit words other than zero, and those of them that were replaced."""

    name: str = field(metadata=TEXT)
    pages: int = field(metadata=COUNT)
    words: int = field(metadata=COUNT)
    replaced: int = field(metadata=COUNT)

    def flaw(self) -> str:
        return "more words replaced than there are" if self.replaced > self.words else ""


@dataclass(frozen=True)
class Synthetic:
    """What of a phase's memory is synthetic, and how that was verified (probe/flow/synthesis.py).

    pages, pages_by_word, kept_pages   replaced as a whole, replaced in part, kept
    words, all_words    64-bit words replaced, of those that are not zero
    mappings            the same by mapping
    pattern             what they were replaced by; "" if nothing was
    patterns_tried, trials   patterns, and restores with replaced pages
    blocks, executions  that are the same with the program's own data
    points, address_steps, unknown_steps   likewise addresses: compared in so many steps, not known in so many
    time_ratio, time_error   CPU time of warm-up and region over that with the program's own data, and its standard
                        error, from pairs of repeats; how these spread the phases of a build tell together
                        (probe/flow/times.py). None if nothing was replaced
    refused             why nothing was replaced; "" if something was
    """

    pages: int = field(metadata=COUNT)
    pages_by_word: int = field(metadata=COUNT)
    kept_pages: int = field(metadata=COUNT)
    words: int = field(metadata=COUNT)
    all_words: int = field(metadata=COUNT)
    mappings: tuple[ReplacedMapping, ...] = field(metadata=many(record(ReplacedMapping)))
    pattern: str = field(metadata=TEXT)
    patterns_tried: int = field(metadata=COUNT)
    trials: int = field(metadata=COUNT)
    blocks: int = field(metadata=COUNT)
    executions: int = field(metadata=COUNT)
    points: int = field(metadata=COUNT)
    address_steps: int = field(metadata=COUNT)
    unknown_steps: int = field(metadata=COUNT)
    time_ratio: float | None = field(metadata=optional(SPREAD))
    time_error: float | None = field(metadata=optional(SPREAD))
    refused: str = field(default="", metadata=TEXT)

    def flaw(self) -> str:
        if self.words > self.all_words:
            return "more words replaced than there are"
        return "replaced, and refused" if self.words and self.refused else ""

    @property
    def real_share(self) -> float:
        """Share of the words other than zero that are the program's own."""
        return 1.0 - self.words / self.all_words if self.all_words else 1.0


@dataclass(frozen=True)
class SharingRecord:
    """How threads share the work of a phase, or of the whole run (probe/prediction/sharing.py). Shares from 0 to 1.

    marking     of the counted instructions, by the thread that tells places
    alone       of the time, in which that thread works alone
    imbalance   how unequal the threads' work is, 1 where one has it all; None if it was not recorded by thread
    waiting     of the time of as many processors as threads work, in which no thread runs
    """

    marking: float = field(metadata=PART)
    alone: float = field(metadata=PART)
    imbalance: float | None = field(metadata=optional(PART))
    waiting: float = field(metadata=PART)


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of a probe.

    representative, intervals   which interval stands for how many
    weight, time_share, spread  share of the counted instructions, of the run's time; spread inside the stratum
    work                        counted instructions in the region
    warmup                      intervals of warm-up
    criu, direct                restored on the reference node by CRIU, by the direct restorer
    stratum                     phases with the same number are parts of one stratum; -1 for one that is all of it
    calls                       system calls of warm-up and region; -1 if not watched
    synthetic                   what of its memory is synthetic; None where that was not wanted
    sharing                     how threads share its work; None where one works, or where that is not known
    """

    id: int = field(metadata=NUMBER)
    representative: int = field(metadata=NUMBER)
    intervals: int = field(metadata=COUNT)
    weight: float = field(metadata=PART)
    time_share: float = field(metadata=PART)
    spread: float = field(metadata=SPREAD)
    work: float = field(metadata=AMOUNT)
    warmup: int = field(metadata=NUMBER)
    in_run: InRun = field(metadata=record(InRun))
    events: Events = field(metadata=record(Events))
    checkpoint: CheckpointRecord = field(metadata=record(CheckpointRecord))
    criu: Times = field(metadata=record(Times))
    direct: Times = field(default=Times(), metadata=record(Times))
    stratum: int = field(default=-1, metadata=whole(-1, MOST_NUMBER))
    calls: int = field(default=-1, metadata=whole(-1))
    synthetic: Synthetic | None = field(default=None, metadata=optional(record(Synthetic)))
    sharing: SharingRecord | None = field(default=None, metadata=optional(record(SharingRecord)))

    @property
    def can_run(self) -> bool:
        """Restored on the reference node at least in one way."""
        return bool(self.criu.wall or self.direct.wall)

    @property
    def only_criu(self) -> str:
        """Why the direct restorer cannot restore it ("" if it can)."""
        return self.direct.failure

    @property
    def only_direct(self) -> bool:
        """Whether it was captured without CRIU, which cannot restore it then."""
        return self.criu.failure == NO_CRIU_IMAGES

    def restored(self, restorer: str) -> Times:
        """On the reference node, in the same way as by `restorer` where that succeeded there."""
        if restorer == DIRECT and self.direct.wall:
            return self.direct
        return self.criu if self.criu.wall else self.direct

    @property
    def expected_seconds(self) -> float:
        """Warm-up and region on the reference node."""
        times = self.restored(CRIU)
        return times.warm + max(times.wall)

    def restore_error(self, clock: str) -> float | None:
        """Restored region time against the same region in the timing run, relative, by `clock`."""
        restored, run = self.restored(CRIU).by(clock), self.in_run.by(clock)
        return statistics.median(restored) / run - 1 if restored and run > 0 else None
