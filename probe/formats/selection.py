# SPDX-License-Identifier: Apache-2.0
"""Result of the selection: phases, representatives and weights, and what is known of their error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkpoint.errors import ProbeFileDamaged
from probe.formats.arrays import IntArray
from probe.formats.checked import (
    COUNT,
    DEVIATION,
    MOST_NUMBER,
    NUMBER,
    PART,
    SEED,
    SHARE,
    SPREAD,
    Unsound,
    as_defaults,
    checked,
    many,
    optional,
    record,
    whole,
)
from probe.formats.choices import SelectionOptions

FORMAT_VERSION = 1

ALONE = -1
"""In `Phase.stratum`: the phase is a stratum by itself."""


@dataclass(frozen=True)
class Phase:
    """One stratum, or one of several parts of it. Shares are of the whole run, dropped phases included, so they need
    not add up to one.

    id: 0.. in the order of the representatives in the run.
    representative: index of the interval to capture, one of `members`, eligible.
    members: indices of the intervals (int64, ascending).
    weight: share of the counted instructions.
    time_share: share of the interval times.
    seconds_spread: time-weighted standard deviation of log seconds per counted instruction inside it.
    stratum: phases with the same number are parts of one stratum; ALONE where the phase is all of it.
    """

    id: int = field(metadata=NUMBER)
    representative: int = field(metadata=NUMBER)
    members: IntArray
    weight: float = field(metadata=PART)
    time_share: float = field(metadata=PART)
    seconds_spread: float = field(metadata=SPREAD)
    stratum: int = field(default=ALONE, metadata=whole(ALONE, MOST_NUMBER))


@dataclass(frozen=True)
class Merge:
    """A stratum without an interval that can be captured, given to phase `phase` (-1 if that was dropped)."""

    phase: int = field(metadata=whole(-1, MOST_NUMBER))
    intervals: int = field(metadata=COUNT)
    time_share: float = field(metadata=SHARE)


@dataclass(frozen=True)
class Selection:
    """The phases of a run, with what is known of their error.

    labels: phase id of each interval (N, int64), -1 where its phase was dropped.
    dropped_time_share: share of the time in dropped phases; the estimators extrapolate over it.
    k_bic: k by SimPoint's rule (0 if no interval had a vector).
    seed: k-means seed of the clustering taken.
    cuts: cuts by time made after it.
    selection_error: direct estimate of the run from the representatives' own interval times, relative to the
        sum of all interval times, minus one. No restore enters. It is judged on the times the selection was
        made from, so it flatters: see `held_out_error`.
    held_out_error: the error of such an estimate, from one representative of each stratum, on intervals that neither
        cuts nor representatives were made from: root mean square over the folds of
        max(|sum of e_c|, sqrt(sum of e_c^2)) / T (errors of strata do not cancel). None if there were too few
        intervals to hold any out.
    merges: strata without an eligible member and where they went.
    """

    phases: tuple[Phase, ...]
    labels: IntArray = field(metadata=many(whole(-1, MOST_NUMBER)))
    dropped_time_share: float = field(metadata=SHARE)
    k_bic: int = field(metadata=COUNT)
    seed: int = field(metadata=SEED)
    cuts: int = field(metadata=COUNT)
    selection_error: float = field(metadata=DEVIATION)
    held_out_error: float | None = field(metadata=optional(SPREAD))
    merges: tuple[Merge, ...] = field(metadata=many(record(Merge)))
    options: SelectionOptions = field(metadata=as_defaults(SelectionOptions))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types. Members are not written: they follow from the labels."""
        phases = [{k: v for k, v in vars(phase).items() if k != "members"} for phase in self.phases]
        return {
            "version": FORMAT_VERSION,
            "phases": phases,
            "labels": self.labels.tolist(),
            "dropped_time_share": self.dropped_time_share,
            "k_bic": self.k_bic,
            "seed": self.seed,
            "cuts": self.cuts,
            "selection_error": self.selection_error,
            "held_out_error": self.held_out_error,
            "merges": [asdict(merge) for merge in self.merges],
            "options": asdict(self.options),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Selection:
        """Inverse of `to_json`. ProbeFileDamaged for a key that is missing or wrong, or another version."""
        try:
            if data["version"] != FORMAT_VERSION:
                raise ProbeFileDamaged(
                    f"the selection has format version {data['version']!r}, this program reads "
                    f"{FORMAT_VERSION}: run the selection stage again"
                )
            values = checked(Selection, data)
            labels = np.asarray(values.pop("labels"), dtype=np.int64)
            phases = [checked(Phase, one, f"phases[{number}]") for number, one in enumerate(data["phases"])]
        except (KeyError, TypeError, Unsound) as error:
            raise ProbeFileDamaged(
                f"the selection cannot be read ({type(error).__name__}: {error}): run the selection stage again"
            ) from error
        selection = Selection(
            phases=tuple(Phase(**one, members=np.flatnonzero(labels == one["id"]).astype(np.int64)) for one in phases),
            labels=labels,
            **values,
        )
        for phase in selection.phases:
            if phase.representative not in phase.members:
                raise ProbeFileDamaged(
                    f"the selection is damaged: representative {phase.representative} is not a member of "
                    f"phase {phase.id}; run the selection stage again"
                )
        return selection
