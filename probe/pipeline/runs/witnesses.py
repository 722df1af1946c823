# SPDX-License-Identifier: Apache-2.0
"""Choose markers that place no boundary: where few others do, their counts tell whether a run repeated the traced one.

The boundaries of a steady loop are placed by the loop's own marker. It is executed as often whatever the program draws
inside, and so is each block that all steps go through.

Markers are rare places, and rare places are what differs where a program collects its garbage a little sooner or later.
A sample of all places tells whether the program repeats itself but for its markers: then it has others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from probe.formats.arrays import IntArray
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import Profile
from probe.formats.timing import LEAST_SECONDS, TimedProfile
from probe.pipeline.runs.boundaries import Candidate, StampedRun, candidates, site_totals
from probe.pipeline.runs.sound_boundaries import LEAST_AGREEING, MOST_UNMARKED, NotRepeated, why_unlike
from probe.tracers.hot_sites import SAVING_SECONDS as MARKER_SECONDS

LEAST_KINDS = 3
"""Markers that a run is compared by, each pair told apart by how often the two are executed."""

_APART = 0.01
"""Share by which executions differ of markers that are told apart: a loop's head runs once more than its body."""

_BUSY = 5.0
"""Executions in the mean interval. Rarer ones may go by the time, as progress that is printed."""

_CHEAP = 0.0005
"""Share of the run that one such marker may cost."""


SAMPLE = 32
"""Kinds of places in the sample."""

_SAMPLED = 0.002
"""Share of the run that the whole sample may cost."""

_FEWEST_SAMPLED = 8
_REPEATING, _NEARLY = 0.5, 0.01
"""Share of the sample that must be executed nearly as often in a run that repeats itself but for its markers, and by
what share more or less that may be. What a runtime does by its timer is thinly spread over all that the program does;
what a program draws changes some of its ways by far."""


_SURVEYED = 40
"""Candidates for each boundary that a survey looks for."""

_SURVEY = 0.02
"""Share of the run that counting them may cost."""


def witnesses(
    profile: Profile,
    wanted: Collection[Candidate],
    *,
    native_seconds: float | None = None,
    avoid: Collection[int] = (),
) -> tuple[int, ...]:
    """Columns to count beside those of `wanted`, the busiest first; none where these are of LEAST_KINDS already.

    None of a run whose threads share the work: who does how much may differ. None for an instruction-exact tracer: the
    processor that it shows may take the program other ways. `native_seconds`, `avoid`: as `candidates` has
    them.
    """
    if profile.first is not None or profile.unit == INSTRUCTIONS or not wanted:
        return ()
    totals, busy = _busy(profile, native_seconds, _CHEAP)
    told: list[float] = []
    chosen: list[int] = []
    for column in sorted({c.column for c in wanted}):
        if _is_apart(totals[column], told):
            told.append(totals[column])
    for column in busy[np.argsort(-totals[busy], kind="stable")].tolist():
        if len(told) >= LEAST_KINDS:
            break
        if column not in avoid and _is_apart(totals[column], told):
            told.append(totals[column])
            chosen.append(column)
    return tuple(chosen)


def sample(
    profile: Profile, beside: Collection[int], *, native_seconds: float | None = None
) -> tuple[int, ...]:  # fmt: skip
    """Columns to count beside those of `beside`, up to SAMPLE of all kinds, evenly spread from the rarest to the
    busiest; none where `witnesses` has none."""
    if profile.first is not None or profile.unit == INSTRUCTIONS:
        return ()
    totals, busy = _busy(profile, native_seconds, _SAMPLED / SAMPLE)
    kinds: list[int] = []
    for column in busy[np.argsort(totals[busy], kind="stable")].tolist():
        if column not in beside and (not kinds or _is_apart(totals[column], (totals[kinds[-1]],))):
            kinds.append(column)
    if len(kinds) < _FEWEST_SAMPLED:
        return ()
    spread = np.linspace(0, len(kinds) - 1, min(SAMPLE, len(kinds))).round().astype(int)
    return tuple(kinds[at] for at in spread)


def survey(
    profile: Profile, avoid: Collection[int], *, native_seconds: float | None = None
) -> tuple[int, ...]:  # fmt: skip
    """Columns that could mark boundaries in place of those of `avoid`, the cheapest, as many as a timing run can
    count: it tells of all of them at once which repeat."""
    others = candidates(profile, _SURVEYED, native_seconds=native_seconds, avoid=avoid)
    columns = np.array(sorted({c.column for c in others}), dtype=np.int64)
    totals, seconds = _executions(profile, native_seconds)
    cheapest = columns[np.argsort(totals[columns], kind="stable")]
    return tuple(cheapest[np.cumsum(totals[cheapest]) * MARKER_SECONDS <= _SURVEY * seconds].tolist())


def as_often(profile: Profile, columns: Collection[int]) -> set[int]:
    """All that the traced run executed exactly as often as one of these columns: most are parts of one function."""
    totals = site_totals(profile)
    return set(np.flatnonzero(np.isin(totals, totals[list(columns)])).tolist())


def unlike_the_sample(
    profile: Profile, placing: Collection[int], sampled: Collection[int], run: StampedRun
) -> set[int]:
    """What differs of a native run of one thread, markers (`placing`) and others, where most markers differ and the
    sample does not: with others the boundaries hold. Else none."""
    if not sampled or profile.first is not None:
        return set()
    differ = _differing(profile, run)
    most = len(differ.intersection(placing)) >= (1 - LEAST_AGREEING) * len(placing)
    return differ if most and _repeats(sampled, _differing(profile, run, _NEARLY)) else set()


def refuse_unlike_sample(profile: Profile, timed: TimedProfile, sampled: Collection[int], run: StampedRun) -> None:
    """Raise NotRepeated where the run with other markers holds by these alone: most of the sample differs, or too few
    boundaries have a marker that was not given up."""
    differ = _differing(profile, run, _NEARLY).intersection(sampled)
    if not _repeats(sampled, differ):
        what = f"of {len(sampled)} other places {len(differ)} were executed by over {_NEARLY:.0%} more or less often"
    elif timed.unmarked > MOST_UNMARKED * profile.intervals:
        what = f"of {profile.intervals - 1} interval boundaries {timed.unmarked} have no marker that repeats"
    else:
        return
    raise NotRepeated(
        f"{profile.program.name}: the timing run did not repeat the traced run: {what}. {why_unlike(profile)}"
    )


def agreeing_alone(
    profile: Profile, wanted: Sequence[Candidate], run: StampedRun
) -> tuple[list[Candidate], StampedRun]:
    """The candidates whose markers the run executed exactly as often, and the run with their stamps alone: where a
    program does not repeat all of its places, a later run reaches these."""
    differ = _differing(profile, run)
    kept = [i for i, one in enumerate(wanted) if one.column not in differ]
    kernel = run.kernel[kept] if len(run.kernel) else run.kernel
    return [wanted[i] for i in kept], replace(run, wall=run.wall[kept], cpu=run.cpu[kept], kernel=kernel)


def _differing(profile: Profile, run: StampedRun, most: float = 0.0) -> set[int]:
    """Columns that the run executed by more than the share `most` more or less often than the traced one."""
    totals = site_totals(profile)
    return {c for c, executions in run.totals.items() if abs(executions - int(totals[c])) > most * int(totals[c])}


def _repeats(sampled: Collection[int], differ: Collection[int]) -> bool:
    return len(set(sampled).intersection(differ)) <= (1 - _REPEATING) * len(sampled)


def _busy(profile: Profile, native_seconds: float | None, most: float) -> tuple[IntArray, IntArray]:
    """Executions of all columns, and those that are busy and cost no more than this share of the run."""
    totals, seconds = _executions(profile, native_seconds)
    return totals, np.flatnonzero((totals * MARKER_SECONDS <= most * seconds) & (totals >= _BUSY * profile.intervals))


def _executions(profile: Profile, native_seconds: float | None) -> tuple[IntArray, float]:
    """Of all columns, and the seconds that the program takes."""
    seconds = float(profile.seconds.sum()) if native_seconds is None else native_seconds
    return site_totals(profile), max(seconds, LEAST_SECONDS)


def _is_apart(executions: float, others: Collection[float]) -> bool:
    return all(abs(executions - other) > _APART * max(executions, other) for other in others)
