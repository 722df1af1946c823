# SPDX-License-Identifier: Apache-2.0
"""Trust in a probe and its predictions: each number that says how far, and whether it is as it usually is.

What is usual is that of docs/how-it-works.md, "What `probe show` says".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from probe.prediction.inputs import PredictionOptions
from probe.report.gathering import Gathered
from probe.report.wording import percent, several, signed_percent

USUAL_ERROR = 0.03
"""Selection, restore and reference runs are usually nearer than this."""

USUAL_COVERAGE = 0.99
USUAL_NOISE = 0.05
WIDE = PredictionOptions().wide
DISAGREEMENT = PredictionOptions().disagreement


@dataclass(frozen=True)
class Check:
    """One number. usual: what it is for most programs; good: None where it is not known.

    meaning: what it says, and what to do where it is not as usual.
    """

    name: str
    value: str
    usual: str
    good: bool | None
    meaning: str


def checks(found: Gathered) -> list[Check]:
    """Of the probe first, then of its predictions, in the order in which to look at them."""
    made: list[Callable[[Gathered], Check | None]] = [
        _selection, _restore, _coverage, _reference, _noise, _environment, _widths, _held, _agreement,
    ]  # fmt: skip
    return [check for make in made if (check := make(found)) is not None]


def headline(all_checks: Sequence[Check]) -> str:
    """How many checks are as usual, and what to look at first."""
    doubtful = [check.name for check in all_checks if check.good is False]
    known = sum(check.good is not None for check in all_checks)
    if doubtful:
        return f"{known - len(doubtful)} of {known} checks are as usual. Look first at: {', '.join(doubtful)}."
    return f"All {known} checks are as usual: nothing here speaks against the numbers."


def verdict(found: Gathered) -> str:
    """What to expect, in a paragraph."""
    m = found.manifest
    text = []
    if m.selection.held_out_error is not None:
        text.append(
            "The phases were tested on parts of the reference run that they were not chosen from, and missed their "
            f"time by {percent(m.selection.held_out_error)}."
        )
    else:
        text.append(
            f"The phases rebuild the time of the reference run to {percent(abs(m.selection.error))}; it was too short "
            "to hold parts of it back for a test."
        )
    text.append(
        "Predictions scale the time measured on the reference node, so on a node like it this error cancels; the "
        "more a node differs, the more of it counts."
    )
    if found.nodes:
        middle = statistics.median(node.half_width for node in found.nodes)
        text.append(
            "Each prediction has an interval that should hold 95 of 100 full runs; it reaches "
            f"{percent(middle)} above the prediction{' in the median' if len(found.nodes) > 1 else ''}. It allows for "
            "noise and for what phases may hide, not for a stretch of the run that a node slows down in a way that "
            "neither code nor speed on the reference node shows."
        )
    pairs = [(node, run) for node in found.nodes for run in found.measured_on(node)]
    if pairs:
        held = sum(node.low <= run <= node.high for node, run in pairs)
        text.append(f"Of {several(len(pairs), 'full run')} measured there, {held:,} lay inside.")
    return " ".join(text)


def _selection(found: Gathered) -> Check:
    m = found.manifest
    held = m.selection.held_out_error
    value = f"{percent(held)} held out" if held is not None else f"{signed_percent(m.selection.error)}, none held out"
    return Check(
        "selection error",
        value,
        f"below {percent(USUAL_ERROR, 0)}",
        abs(m.selection.error if held is None else held) < USUAL_ERROR,
        "how well the chosen intervals rebuild the time of others, on the reference node; more `--max-phases`, a "
        "shorter `--interval` or a longer run lowers it",
    )


def _restore(found: Gathered) -> Check:
    error = found.manifest.restore_error
    return Check(
        "restore error",
        percent(error, 2),
        f"below {percent(USUAL_ERROR, 0)}",
        None if error is None else error < USUAL_ERROR,
        "a restored region against the same region inside the run, median over the phases; longer `--warmup` lowers it",
    )


def _coverage(found: Gathered) -> Check:
    coverage = found.manifest.coverage
    return Check(
        "time covered",
        percent(coverage),
        f"over {percent(USUAL_COVERAGE, 0)}",
        coverage >= USUAL_COVERAGE,
        "share of the run's time in phases that can be restored; the rest is extrapolated",
    )


def _reference(found: Gathered) -> Check:
    runs = found.manifest.reference.runs
    spread = max(runs) / min(runs) - 1 if min(runs) > 0 else math.nan
    return Check(
        "reference runs",
        f"{several(len(runs), 'run')}, {percent(spread)} apart",
        f"{PredictionOptions().min_runs} runs or more within {percent(USUAL_ERROR, 0)}",
        len(runs) >= PredictionOptions().min_runs and spread < USUAL_ERROR,
        "full runs on the reference node, which every prediction is a multiple of; a quiet node brings them together",
    )


def _noise(found: Gathered) -> Check | None:
    if not found.manifest.reference.early_wall:
        # The timing run is then one of the runs that it would be compared with.
        return None
    noise = found.manifest.noise
    return Check(
        "noise",
        f"{noise:.3f}",
        f"1.00 to {1 + USUAL_NOISE:.2f}",
        abs(noise - 1) <= USUAL_NOISE,
        "the run with markers over a plain one (thesis, 4.3); beyond, markers sat on hot code or other load disturbed",
    )


def _environment(found: Gathered) -> Check | None:
    reference = found.manifest.reference
    if reference.plain_seconds is None:
        return None
    apart = reference.plain_seconds / reference.seconds - 1
    return Check(
        "your own environment",
        signed_percent(apart),
        f"within {percent(USUAL_NOISE, 0)}",
        abs(apart) <= USUAL_NOISE,
        "one run as you would start it, against the environment that is predicted for; far apart, `--isa` costs speed",
    )


def _widths(found: Gathered) -> Check | None:
    if not found.nodes:
        return None
    wide = sum(node.half_width > WIDE for node in found.nodes)
    widest = max(node.half_width for node in found.nodes)
    return Check(
        "width of the intervals",
        f"up to {percent(widest)}",
        f"below {percent(WIDE, 0)}",
        not wide,
        f"predictions with a wider one: {wide:,} of {len(found.nodes):,}; the "
        "figure of the intervals says what makes them so",
    )


def _held(found: Gathered) -> Check | None:
    pairs = [(node, run) for node in found.nodes for run in found.measured_on(node)]
    if not pairs:
        return None
    held = sum(node.low <= run <= node.high for node, run in pairs)
    return Check(
        "measured runs in their intervals",
        f"{held:,} of {len(pairs):,}",
        "95 of 100",
        # So few as this happen to right intervals less than once in a hundred times.
        held >= 0.95 * len(pairs) - 2.33 * math.sqrt(0.95 * 0.05 * len(pairs)),
        "the only proof from outside; "
        + (
            "predictions are CPU time: waiting comes on top"
            if found.manifest.reference.clock == "cpu"
            else "wall times"
        ),
    )


def _agreement(found: Gathered) -> Check | None:
    apart = [abs(math.log(node.estimators["direct"] / node.estimators["calibrated"])) for node in found.nodes]
    apart = [value for value in apart if math.isfinite(value)]
    if not apart:
        return None
    return Check(
        "estimators agree",
        f"within {percent(math.expm1(max(apart)))}",
        f"within {percent(DISAGREEMENT, 0)}",
        max(apart) <= math.log1p(DISAGREEMENT),
        "calibrated against direct; apart, restored regions or the selection are not what they should be",
    )
