# SPDX-License-Identifier: Apache-2.0
"""Describe a probe: the JSON manifest at the front of a .probe file, and its typed form."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from checkpoint.errors import ProbeFileDamaged
from probe.formats.kernel_time import KernelShare, kernel_share
from probe.formats.reference import Reference

MANIFEST_VERSION = 1
DIRECT, CRIU = "direct", "criu"
"""The two ways to restore a phase."""


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of a probe. Times in seconds; sequences hold one value per repeat.

    representative, intervals   which interval stands for how many
    weight, time_share, spread  share of the counted instructions, of the run's time; spread inside the stratum
    work                        counted instructions in the region
    started                     when the region began in the timing run
    t_run, cpu_run              the region in the timing run
    t_ref, cpu_ref              restored on the reference node; empty where that failed, `failure` says why
    warm_ref                    the warm-up, restored on the reference node
    warmup                      intervals of warm-up
    *_event                     addresses of event records (checkpoint/stubs/stubs.S)
    raw_pages, kept_pages       pages of the checkpoint as CRIU wrote it, and in the probe
    touched_pages               pages the phase touches; `whole` says why a phase was not reduced
    raw_bytes                   size of the checkpoint as CRIU wrote it
    t_ref_direct, cpu_ref_direct   as t_ref and cpu_ref, restored by the direct restorer
    warm_ref_direct             the warm-up then
    kernel_ref, kernel_ref_direct  CPU seconds in the kernel, of the same repeats (probe/formats/kernel_time.py)
    faults_ref, faults_ref_direct  page faults in the region, median
    kernel_run, kernel_run_error   share of the phase's CPU time in the kernel in the timing run, all its intervals
                                taken together, and its standard error; None if it was not stamped
    calls                       system calls of warm-up and region; -1 if not watched
    only_criu                   why the direct restorer cannot restore it ("" if it can)
    stratum                     phases with the same number are parts of one stratum; -1 for one that is all of it
    """

    id: int
    representative: int
    intervals: int
    weight: float
    time_share: float
    spread: float
    work: float
    started: float
    t_run: float
    cpu_run: float
    t_ref: tuple[float, ...]
    cpu_ref: tuple[float, ...]
    warm_ref: float
    warmup: int
    warm_event: int
    start_event: int
    end_event: int
    raw_pages: int
    kept_pages: int
    touched_pages: int
    whole: str = ""
    failure: str = ""
    raw_bytes: int = 0
    t_ref_direct: tuple[float, ...] = ()
    cpu_ref_direct: tuple[float, ...] = ()
    warm_ref_direct: float = 0.0
    only_criu: str = ""
    stratum: int = -1
    kernel_ref: tuple[float, ...] = ()
    kernel_ref_direct: tuple[float, ...] = ()
    faults_ref: int | None = None
    faults_ref_direct: int | None = None
    kernel_run: float | None = None
    kernel_run_error: float | None = None
    calls: int = -1

    @property
    def can_run(self) -> bool:
        """Restored on the reference node at least in one way."""
        return bool(self.t_ref or self.t_ref_direct)

    def restored(self, restorer: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(wall, CPU seconds) of the region on the reference node, restored in the same way as by `restorer`."""
        if restorer == DIRECT and self.t_ref_direct:
            return self.t_ref_direct, self.cpu_ref_direct
        return (self.t_ref, self.cpu_ref) if self.t_ref else (self.t_ref_direct, self.cpu_ref_direct)

    def kernel(self, restorer: str) -> KernelShare | None:
        """Share of the region's CPU time in the kernel on the reference node, restored as by `restored`."""
        direct = self.restored(restorer)[1] is self.cpu_ref_direct
        return kernel_share(self.kernel_ref_direct if direct else self.kernel_ref, self.restored(restorer)[1])

    @property
    def expected_seconds(self) -> float:
        """Warm-up and region on the reference node."""
        if self.t_ref:
            return self.warm_ref + max(self.t_ref)
        return self.warm_ref_direct + max(self.t_ref_direct)

    def restore_error(self, clock: str) -> float | None:
        """Restored region time against the same region in the timing run, relative, by `clock`."""
        wall, cpu = self.restored(CRIU)
        restored, run = (cpu, self.cpu_run) if clock == "cpu" else (wall, self.t_run)
        return statistics.median(restored) / run - 1 if restored and run > 0 else None

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PhaseRecord:
        times = ("t_ref", "cpu_ref", "t_ref_direct", "cpu_ref_direct", "kernel_ref", "kernel_ref_direct")
        return PhaseRecord(**{**_known(PhaseRecord, value), **{name: tuple(value.get(name, ())) for name in times}})


@dataclass(frozen=True)
class WarmupTrial:
    """What `warmup` intervals before the region do to the regions of the phases tried (probe/pipeline/warmup.py).

    relative, error   their time over that behind the longest warm-up tried, and its standard error
    against_run       their time over that in the timing run
    """

    warmup: int
    relative: float
    error: float
    against_run: float


@dataclass(frozen=True)
class Manifest:
    """Everything about a probe but its memory and files.

    warnings, notes: what makes predictions less trustworthy, and what is only worth knowing.
    trimmed_from: phases it had before `probe trim`, 0 if it was never trimmed.
    warmup_trials: how the warm-up was chosen, shortest first; empty where it was given.
    """

    argv: tuple[str, ...]
    executable: str
    cwd: str
    stdin: str
    isa: str
    tracer: str
    unit: str
    interval: float
    intervals: int
    reference_node: dict[str, Any]
    reference: Reference
    timing_seconds: float
    timing_cpu_seconds: float
    trace_seconds: float
    sites: int
    removed_sites: int
    install_seconds: float
    boundaries: dict[str, int]
    work_unit: str
    total_work: float
    phases: tuple[PhaseRecord, ...]
    dropped_time_share: float
    selection_error: float
    held_out_error: float | None
    seed: int
    cpu_features: tuple[str, ...]
    outputs: tuple[str, ...]
    private_files: tuple[PrivateFile, ...]
    raw_bytes: int
    warnings: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
    external_files: tuple[ExternalFile, ...] = field(default=())
    trimmed_from: int = 0
    warmup_trials: tuple[WarmupTrial, ...] = field(default=())

    @property
    def coverage(self) -> float:
        """Time share of the phases that can be run."""
        return sum(p.time_share for p in self.phases if p.can_run)

    @property
    def noise(self) -> float:
        """Instrumented over plain reference time (thesis, equation 4.3)."""
        timed = self.timing_cpu_seconds if self.reference.clock == "cpu" else self.timing_seconds
        return timed / self.reference.early_seconds

    @property
    def restore_error(self) -> float | None:
        """Median over the phases of the absolute restore error."""
        found = [abs(e) for p in self.phases if (e := p.restore_error(self.reference.clock)) is not None]
        return statistics.median(found) if found else None

    @property
    def id(self) -> str:
        """32 digits that name the build, the same after `probe trim`.

        A checksum of what two builds never share: the times of their runs, to the last digit.
        """
        times = [self.timing_seconds, self.timing_cpu_seconds, self.trace_seconds, self.total_work]
        said = [self.argv, self.executable, self.reference.to_json(), times]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        return {"manifest_version": MANIFEST_VERSION, **asdict(self)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Manifest:
        """Raises ProbeFileDamaged for another version or missing entries."""
        entries = dict(value)
        version = entries.pop("manifest_version", None)
        if version != MANIFEST_VERSION:
            raise ProbeFileDamaged(
                f"the probe's manifest has version {version!r}; this program reads {MANIFEST_VERSION}"
            )
        try:
            entries.setdefault("notes", ())
            for name in ("argv", "cpu_features", "outputs", "warnings", "notes"):
                entries[name] = tuple(str(v) for v in entries[name])
            entries["reference"] = Reference.from_json(entries["reference"])
            entries["phases"] = tuple(PhaseRecord.from_json(p) for p in entries["phases"])
            entries["private_files"] = tuple(PrivateFile(**_known(PrivateFile, p)) for p in entries["private_files"])
            entries["external_files"] = tuple(
                ExternalFile(**_known(ExternalFile, p)) for p in entries.get("external_files", ())
            )
            entries["warmup_trials"] = tuple(
                WarmupTrial(**_known(WarmupTrial, t)) for t in entries.get("warmup_trials", ())
            )
            return Manifest(**_known(Manifest, entries))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProbeFileDamaged(f"the probe's manifest is incomplete: {error!r}; build the probe again") from error


def _known(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    """What of `value` this program knows: probes of later versions say more."""
    return {field.name: value[field.name] for field in fields(kind) if field.name in value}


OUTPUT = "output"
"""Purpose of private copies in the probe's list of files; this node's own files never stand in for them."""


@dataclass(frozen=True)
class PrivateFile:
    """A file that was being written when `phase` was captured: its contents and permission bits then."""

    phase: int
    path: str
    sha256: str
    mode: int


@dataclass(frozen=True)
class ExternalFile:
    """A file left out of the probe, which the node must have as it was: size in bytes, SHA-256, permission bits."""

    path: str
    size: int
    sha256: str
    mode: int
