# SPDX-License-Identifier: Apache-2.0
"""Smaller probes: fewer phases, the least important dropped first, and what that costs (docs/estimators.md).

Importance is time share, not instruction weight: a small but slow phase stays before a large but fast one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.errors import ProbeError
from probe.candidates.result import rounded_down
from probe.contents.carried_files import private_path
from probe.contents.members import touched_name
from probe.formats.manifest import OUTPUT, Manifest
from probe.formats.phase_record import PhaseRecord
from probe.prediction.inputs import PredictionOptions
from probe.prediction.variance import between_variance
from reducer.choices import Compression
from reducer.output_file import check_target
from reducer.repacking import Kept, predicted_sizes, repack
from reducer.unpack import ProbeArchive, open_probe

TRADEOFF_VERSION = 1

_SLACK = 1.25
"""A probe may turn out so much smaller than predicted, with another compression above all: what is too large after all
is not finished, and one phase less is tried."""


@dataclass(frozen=True)
class Tradeoff:
    """A probe that keeps the `phases` most important phases: their ids in order of importance, the share of the
    run's time in them, its size in bytes as it is packed now, and the expected relative error of its predictions."""

    phases: int
    kept: tuple[int, ...]
    coverage: float
    size_bytes: int
    expected_error: float


@dataclass(frozen=True)
class TrimmedProbe:
    """A finished smaller probe. `least_coverage`: what `run` must be told to accept, None if its default does."""

    path: Path
    manifest: Manifest
    size_bytes: int
    source_bytes: int
    expected_error: float
    least_coverage: float | None

    def to_json(self) -> dict[str, Any]:
        """What `probe trim --json` prints (docs/json.md)."""
        return {
            "format_version": TRADEOFF_VERSION,
            "probe": str(self.path),
            "phases": [phase.id for phase in self.manifest.phases],
            "trimmed_from": self.manifest.trimmed_from,
            "coverage": self.manifest.coverage,
            "size_bytes": self.size_bytes,
            "source_bytes": self.source_bytes,
            "expected_error": self.expected_error,
            "least_coverage": self.least_coverage,
        }


def by_importance(manifest: Manifest) -> list[PhaseRecord]:
    """The phases that can be run, the one with most of the time first; equal ones in order of their ids."""
    return sorted((p for p in manifest.phases if p.can_run), key=lambda p: (-p.time_share, p.id))


def tradeoff(path: Path | str) -> list[Tradeoff]:
    """What keeping 1, 2, ... phases of the probe at `path` would give. Raises ProbeFileDamaged, StorageError."""
    with open_probe(Path(path)) as archive:
        return _tradeoff(archive, Manifest.from_json(archive.manifest))


def tradeoff_json(path: Path | str) -> dict[str, Any]:
    """The same as JSON (docs/json.md)."""
    rows = [{**vars(row), "kept": list(row.kept)} for row in tradeoff(path)]
    return {"format_version": TRADEOFF_VERSION, "tradeoff": rows}


def trim(
    path: Path | str,
    output: Path | str,
    *,
    phases: int | None = None,
    coverage: float | None = None,
    max_size: int | None = None,
    compression: Compression = "gzip",
) -> TrimmedProbe:
    """Write a probe with only the most important phases of the one at `path` to `output` (mode 0600).

    Exactly one of: `phases`, how many; `coverage`, the fewest that hold this share of the run's time; `max_size`, as
    many as fit in so many bytes. `output` may be `path`: it is replaced when the new one is complete, or not at all.

    Raises ProbeError for a wrong call and where no probe can be as asked, ProbeFileDamaged, StorageError, ToolMissing.
    """
    given = [x for x in (phases, coverage, max_size) if x is not None]
    if len(given) != 1:
        raise ProbeError("give exactly one of --phases, --coverage and --max-size")
    if given[0] <= 0 or (coverage is not None and coverage > 1):
        raise ProbeError(f"{given[0]} cannot be kept: --phases and --max-size are above 0, --coverage up to 1")
    target = Path(output).absolute()
    check_target(target)
    with open_probe(Path(path)) as archive:
        manifest = Manifest.from_json(archive.manifest)
        rows = _tradeoff(archive, manifest)
        if not rows:
            raise ProbeError(f"{path}: no phase of it can be run; there is nothing to trim")
        number = _enough(rows, phases, coverage, max_size, str(path))
        size = None
        while size is None:
            kept = _kept(archive, manifest, rows[number - 1].kept)
            size = repack(archive, kept, target, compression=compression, limit=max_size)
            if size is None:
                number -= 1
            if number == 0:
                raise _too_large(rows, max_size, str(path))
        source_bytes = archive.size_bytes
    row = rows[number - 1]
    enough = row.coverage >= PredictionOptions().min_coverage
    return TrimmedProbe(
        target,
        _trimmed(manifest, row.kept),
        size,
        source_bytes,
        row.expected_error,
        None if enough else rounded_down(row.coverage),
    )


def expected_errors(manifest: Manifest, coverages: Sequence[float]) -> list[float]:
    """Relative error to expect of predictions at these coverages: sqrt(h^2 + (1 - C)^2 q^2).

    h is the held-out selection error; q how different the uncovered time may be on another node, taken from the
    spread of the phases' seconds per work here, at most 1 (docs/estimators.md, "Size against quality").
    """
    selection = manifest.selection
    h = abs(selection.error if selection.held_out_error is None else selection.held_out_error)
    q = _difference(manifest)
    return [math.hypot(h, max(0.0, 1.0 - c) * q) for c in coverages]


def _difference(manifest: Manifest) -> float:
    known = [(p, p.in_run.by(manifest.reference.clock)) for p in manifest.phases if p.work > 0]
    known = [(p, seconds) for p, seconds in known if seconds > 0 and p.time_share > 0]
    if len(known) < 2:
        return 1.0
    rates = np.array([math.log(seconds / p.work) for p, seconds in known])
    shares = np.array([p.time_share for p, _ in known])
    return min(1.0, math.sqrt(between_variance(rates, shares, np.zeros(len(known)))))


def _tradeoff(archive: ProbeArchive, manifest: Manifest) -> list[Tradeoff]:
    order = by_importance(manifest)
    ids = [p.id for p in order]
    coverages = np.minimum(np.cumsum([p.time_share for p in order]), 1.0).tolist()
    sizes = predicted_sizes(archive, ids, lambda number: _kept(archive, manifest, ids[:number]))
    errors = expected_errors(manifest, coverages)
    return [
        Tradeoff(number, tuple(ids[:number]), share, size, error)
        for number, (share, size, error) in enumerate(zip(coverages, sizes, errors, strict=True), 1)
    ]


def _enough(
    rows: Sequence[Tradeoff], phases: int | None, coverage: float | None, max_size: int | None, name: str
) -> int:
    """How many phases to keep, from 1 on."""
    if phases is not None:
        return min(phases, len(rows))
    if coverage is not None:
        # Shares are sums of rounded numbers.
        found = next((row.phases for row in rows if row.coverage >= coverage - 1e-9), None)
        if found is None:
            raise ProbeError(
                f"{name}: all its phases together cover {rows[-1].coverage:.2%} of the run, {coverage:.2%} are asked "
                f"for; ask for --coverage {rounded_down(rows[-1].coverage):g} at most"
            )
        return found
    assert max_size is not None
    fitting = [row.phases for row in rows if row.size_bytes <= max_size * _SLACK]
    return fitting[-1] if fitting else 1


def _too_large(rows: Sequence[Tradeoff], max_size: int | None, name: str) -> ProbeError:
    return ProbeError(
        f"{name}: one phase alone takes about {rows[0].size_bytes} bytes with its files, more than {max_size}; allow "
        "more, or leave large files out when building (--external PATH)"
    )


def _kept(archive: ProbeArchive, manifest: Manifest, ids: Sequence[int]) -> Kept:
    wanted = set(ids)
    trimmed = _trimmed(manifest, ids)
    private = {private_path(file) for file in trimmed.files.private}
    touched = {touched_name(phase) for phase in wanted}
    all_touched = {touched_name(p.id) for p in manifest.phases}
    return Kept(
        trimmed.to_json(),
        [phase for phase in archive.phases if phase.id in wanted],
        [file for file in archive.files if file.purpose != OUTPUT or file.path in private],
        [name for name in archive.data_names if name in touched or name not in all_touched],
    )


def _trimmed(manifest: Manifest, ids: Sequence[int]) -> Manifest:
    """The manifest of the phases `ids`; all others count as dropped, as those that the selection dropped."""
    kept = tuple(p for p in manifest.phases if p.id in set(ids))
    lost = sum(p.time_share for p in manifest.phases) - sum(p.time_share for p in kept)
    dropped = manifest.selection.dropped_time_share + max(0.0, lost)
    private = tuple(f for f in manifest.files.private if f.phase in set(ids))
    return replace(
        manifest,
        phases=kept,
        selection=replace(manifest.selection, dropped_time_share=min(1.0, dropped)),
        files=replace(manifest.files, private=private),
        raw_bytes=sum(p.checkpoint.raw_bytes for p in kept),
        trimmed_from=max(manifest.trimmed_from, len(manifest.phases)),
    )
