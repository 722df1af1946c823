# SPDX-License-Identifier: Apache-2.0
"""Result of the selection: phases, representatives and weights, and what is known of their error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from checkpoint.errors import ProbeFileDamaged
from probe.formats.arrays import IntArray
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

    id: int
    representative: int
    members: IntArray
    weight: float
    time_share: float
    seconds_spread: float
    stratum: int = ALONE


@dataclass(frozen=True)
class Merge:
    """A stratum without an interval that can be captured, given to phase `phase` (-1 if that was dropped)."""

    phase: int
    intervals: int
    time_share: float


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
    labels: IntArray
    dropped_time_share: float
    k_bic: int
    seed: int
    cuts: int
    selection_error: float
    held_out_error: float | None
    merges: tuple[Merge, ...]
    options: SelectionOptions

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
            labels = np.asarray(data["labels"], dtype=np.int64).reshape(-1)
            phases = tuple(
                Phase(
                    id=int(one["id"]),
                    representative=int(one["representative"]),
                    members=np.flatnonzero(labels == int(one["id"])).astype(np.int64),
                    weight=float(one["weight"]),
                    time_share=float(one["time_share"]),
                    seconds_spread=float(one["seconds_spread"]),
                    stratum=int(one.get("stratum", ALONE)),
                )
                for one in data["phases"]
            )
            held_out = data["held_out_error"]
            selection = Selection(
                phases=phases,
                labels=labels,
                dropped_time_share=float(data["dropped_time_share"]),
                k_bic=int(data["k_bic"]),
                seed=int(data["seed"]),
                cuts=int(data["cuts"]),
                selection_error=float(data["selection_error"]),
                held_out_error=None if held_out is None else float(held_out),
                merges=tuple(
                    Merge(int(m["phase"]), int(m["intervals"]), float(m["time_share"])) for m in data["merges"]
                ),
                options=SelectionOptions(**data["options"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProbeFileDamaged(
                f"the selection cannot be read ({type(error).__name__}: {error}): run the selection stage again"
            ) from error
        for phase in selection.phases:
            if phase.representative not in phase.members:
                raise ProbeFileDamaged(
                    f"the selection is damaged: representative {phase.representative} is not a member of "
                    f"phase {phase.id}; run the selection stage again"
                )
        return selection
