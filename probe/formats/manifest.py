# SPDX-License-Identifier: Apache-2.0
"""Describe a probe: the JSON manifest at the front of a .probe file, and its typed form."""

from __future__ import annotations

import hashlib
import reprlib
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged
from probe.formats.checked import (
    AMOUNT,
    COUNT,
    DEVIATION,
    LENGTH,
    MODE,
    NUMBER,
    PATH,
    SECONDS,
    SEED,
    SHA256,
    SHARE,
    SPREAD,
    TEXT,
    TIME,
    WORD,
    Unsound,
    many,
    optional,
    read,
    record,
)
from probe.formats.manifest_version_1 import from_version_1
from probe.formats.phase_record import PhaseRecord, SharingRecord
from probe.formats.reference import Reference

MANIFEST_VERSION = 2
OUTSIDE_VERSION = 3
"""Of a probe of a program with other processes: a reader of version 2 would take their time for the program's."""

THREADS_VERSION = 4
"""Of a probe of threads that share the work: a reader of version 3 would give them one processor."""

FEW_RUNS_VERSION = 5
"""Of a probe for which few full runs were made: a reader of version 4 would take it for damaged."""

READ_VERSIONS = (1, MANIFEST_VERSION, OUTSIDE_VERSION, THREADS_VERSION, FEW_RUNS_VERSION)

OUTPUT = "output"
"""Purpose of private copies in the probe's list of files; this node's own files never stand in for them."""

_ROUNDING = 1e-6
"""What sums of shares may differ by."""


@dataclass(frozen=True)
class WarmupTrial:
    """What `warmup` intervals before the region do to the regions of the phases tried (probe/pipeline/warmup.py).

    relative, error   their time over that behind the longest warm-up tried, and its standard error
    against_run       their time over that in the timing run
    """

    warmup: int = field(metadata=NUMBER)
    relative: float = field(metadata=AMOUNT)
    error: float = field(metadata=AMOUNT)
    against_run: float = field(metadata=AMOUNT)


@dataclass(frozen=True)
class ProgramRecord:
    """The program: its command line, the file, where it ran and with what as standard input, the --isa it was held to.

    cpu_features: of the processor, that the phases execute. outputs: files of standard output and standard error.
    """

    argv: tuple[str, ...] = field(metadata=many(TEXT, 1))
    executable: str = field(metadata=PATH)
    cwd: str = field(metadata=PATH)
    stdin: str = field(metadata=PATH)
    isa: str = field(metadata=WORD)
    cpu_features: tuple[str, ...] = field(metadata=many(WORD))
    outputs: tuple[str, ...] = field(metadata=many(PATH))


@dataclass(frozen=True)
class NodeRecord:
    """The reference node, by the keys of `probe.node.facts.this_node`."""

    name: str = field(default="?", metadata=WORD)
    cpu: str = field(default="?", metadata=WORD)
    cores: int = field(default=1, metadata=COUNT)
    kernel: str = field(default="?", metadata=WORD)
    load: float = field(default=0.0, metadata=AMOUNT)


@dataclass(frozen=True)
class TracingRecord:
    """The traced run, seconds by the program's clock, and what its profile counts in.

    unit, interval          what intervals are equal in, and their length in it
    sites, removed_sites    blocks that were counted, and those of them that ran too often
    install_seconds         what it took to put the counters in
    counted_share           of the instructions, what was counted (probe/formats/profile.py); None in older probes
    """

    tracer: str = field(metadata=WORD)
    unit: str = field(metadata=WORD)
    interval: float = field(metadata=LENGTH)
    seconds: float = field(metadata=SECONDS)
    sites: int = field(metadata=COUNT)
    removed_sites: int = field(metadata=COUNT)
    install_seconds: float = field(metadata=SECONDS)
    counted_share: float | None = field(default=None, metadata=optional(SHARE))


@dataclass(frozen=True)
class Boundaries:
    """How many boundaries between intervals there were, could not be marked, failed in the timing run; how many markers
    were compared and executed equally often (probe/formats/timing.py)."""

    all: int = field(metadata=COUNT)
    unmarked: int = field(default=0, metadata=COUNT)
    missing: int = field(default=0, metadata=COUNT)
    out_of_order: int = field(default=0, metadata=COUNT)
    markers_agreeing: int = field(default=0, metadata=COUNT)
    markers_compared: int = field(default=0, metadata=COUNT)


@dataclass(frozen=True)
class TimingRecord:
    """The timing run: its intervals, and how long it took."""

    intervals: int = field(metadata=COUNT)
    seconds: float = field(metadata=TIME)
    cpu_seconds: float = field(metadata=TIME)
    boundaries: Boundaries = field(metadata=record(Boundaries))


@dataclass(frozen=True)
class OutsideRecord:
    """Time of the run in other processes than the one with the phases, in the timing run: by its clocks, and the share
    of the run by the program's clock. How many there were, and what some of them executed."""

    share: float = field(metadata=SHARE)
    wall: float = field(metadata=SECONDS)
    cpu: float = field(metadata=SECONDS)
    processes: int = field(metadata=COUNT)
    commands: tuple[str, ...] = field(default=(), metadata=many(TEXT))

    def flaw(self) -> str:
        return "the whole run" if self.share >= 1.0 else ""


@dataclass(frozen=True)
class SelectionRecord:
    """The selection: its seed, the share of the time in no phase, and its errors (probe/formats/selection.py)."""

    seed: int = field(metadata=SEED)
    dropped_time_share: float = field(metadata=SHARE)
    error: float = field(metadata=DEVIATION)
    held_out_error: float | None = field(metadata=optional(SPREAD))


@dataclass(frozen=True)
class PrivateFile:
    """A file that was being written when `phase` was captured: its contents and permission bits then."""

    phase: int = field(metadata=NUMBER)
    path: str = field(metadata=PATH)
    sha256: str = field(metadata=SHA256)
    mode: int = field(metadata=MODE)


@dataclass(frozen=True)
class ExternalFile:
    """A file left out of the probe, which the node must have as it was: size in bytes, SHA-256, permission bits."""

    path: str = field(metadata=PATH)
    size: int = field(metadata=COUNT)
    sha256: str = field(metadata=SHA256)
    mode: int = field(metadata=MODE)


@dataclass(frozen=True)
class FilesRecord:
    """Files with a part of their own: those that phases write, and those that were left out."""

    private: tuple[PrivateFile, ...] = field(default=(), metadata=many(record(PrivateFile)))
    external: tuple[ExternalFile, ...] = field(default=(), metadata=many(record(ExternalFile)))


@dataclass(frozen=True)
class Manifest:
    """Everything about a probe but its memory and files.

    warnings, notes: what makes predictions less trustworthy, and what is only worth knowing.
    raw_bytes: of its checkpoints as CRIU wrote them.
    trimmed_from: phases it had before `probe trim`, 0 if it was never trimmed.
    outside: the time of processes that the program started; None where it started none.
    warmup_trials: how the warm-up was chosen, shortest first; empty where it was given.
    threads: how many share the work, and so how many processors a node must have.
    sharing: how they share it; None where one thread works, or where that is not known.
    """

    program: ProgramRecord = field(metadata=record(ProgramRecord))
    tracing: TracingRecord = field(metadata=record(TracingRecord))
    timing: TimingRecord = field(metadata=record(TimingRecord))
    reference_node: NodeRecord = field(metadata=record(NodeRecord))
    reference: Reference = field(metadata=record(Reference))
    work_unit: str = field(metadata=WORD)
    total_work: float = field(metadata=AMOUNT)
    selection: SelectionRecord = field(metadata=record(SelectionRecord))
    phases: tuple[PhaseRecord, ...] = field(metadata=many(record(PhaseRecord)))
    raw_bytes: int = field(metadata=COUNT)
    files: FilesRecord = field(default=FilesRecord(), metadata=record(FilesRecord))
    warnings: tuple[str, ...] = field(default=(), metadata=many(TEXT))
    notes: tuple[str, ...] = field(default=(), metadata=many(TEXT))
    trimmed_from: int = field(default=0, metadata=COUNT)
    outside: OutsideRecord | None = field(default=None, metadata=optional(record(OutsideRecord)))
    warmup_trials: tuple[WarmupTrial, ...] = field(default=(), metadata=many(record(WarmupTrial)))
    threads: int = field(default=1, metadata=COUNT)
    sharing: SharingRecord | None = field(default=None, metadata=optional(record(SharingRecord)))

    @property
    def coverage(self) -> float:
        """Time share of the phases that can be run."""
        return sum(p.time_share for p in self.phases if p.can_run)

    @property
    def noise(self) -> float:
        """Instrumented over plain reference time (thesis, equation 4.3)."""
        timed = self.timing.cpu_seconds if self.reference.clock == "cpu" else self.timing.seconds
        return timed / self.reference.early_seconds

    @property
    def restore_error(self) -> float | None:
        """Median over the phases of the absolute restore error."""
        found = [abs(e) for p in self.phases if (e := p.restore_error(self.reference.clock)) is not None]
        return statistics.median(found) if found else None

    @property
    def id(self) -> str:
        """32 digits that name the build, the same after `probe trim` and in every version.

        A checksum of what two builds never share: the times of their runs, to the last digit.
        """
        times = [self.timing.seconds, self.timing.cpu_seconds, self.tracing.seconds, self.total_work]
        said = [self.program.argv, self.program.executable, self.reference.identity(), times]
        return hashlib.sha256(strict_json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]

    def flaw(self) -> str:
        if not self.threads:
            return "no thread"
        if len({phase.id for phase in self.phases}) != len(self.phases):
            return "two phases with the same id"
        if any(phase.representative >= self.timing.intervals for phase in self.phases):
            return "a representative that is none of the intervals"
        if max(sum(p.time_share for p in self.phases), sum(p.weight for p in self.phases)) > 1.0 + _ROUNDING:
            return "phases that hold more than the whole run"
        return ""

    def to_json(self) -> dict[str, Any]:
        version = MANIFEST_VERSION if self.outside is None else OUTSIDE_VERSION
        said = asdict(self)
        if self.threads == 1:
            # No key where there is none to share with: the file is as other versions write it.
            for one in (said, *said["phases"]):
                one.pop("sharing")
            del said["threads"]
        if self.threads > 1:
            version = THREADS_VERSION
        return {"manifest_version": FEW_RUNS_VERSION if self.reference.few else version, **said}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Manifest:
        """Raises ProbeFileDamaged for another version, and where a value is missing, or none that a build writes."""
        version = value.get("manifest_version")
        if type(version) is not int or version not in READ_VERSIONS:
            known = " and ".join(map(str, READ_VERSIONS))
            raise ProbeFileDamaged(
                f"the probe's manifest has version {reprlib.repr(version)}; this program reads {known}"
            )
        try:
            return read(Manifest, from_version_1(value) if version == 1 else value)
        except Unsound as error:
            raise ProbeFileDamaged(
                f"the probe's manifest is damaged: {error}; copy the probe again, or build it again"
            ) from error
