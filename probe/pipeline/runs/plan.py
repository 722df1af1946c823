# SPDX-License-Identifier: Apache-2.0
"""Decide how often a build runs the whole program, by how long it takes.

A program of seconds is run often: runs are cheap, and narrow the interval. For a program of minutes all is taken from
the runs that have to be: its clock and whether it sleeps from the timing run, its time from the timing run and from
plain runs between the rounds of the self-check, what it prints from all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.formats.choices import SECONDS
from probe.formats.profile import Profile
from probe.formats.reference import Reference

FEW_SECONDS = 20.0
"""From here on no run is made that another one can stand in for."""

LONG_SECONDS = 120.0
"""From here on one plain run has to do."""

EARLY_RUNS = 2
"""Plain runs of a short program right behind its timing run, or before that of an exact trace: enough to see which of
its output it does not repeat."""

AGAIN_RUNS, AGAIN_SECONDS = 2, 8.0
"""Further stamped runs before phases are chosen, and the seconds that all of them may take: one timing run alone cannot
tell a slow interval from a disturbed one."""

REPEATED_SECONDS = 2.5
"""Of a program up to so long any timing run that diverged is made once more: a refusal still comes within seconds."""

BETWEEN_SHORT, BETWEEN_FEW, BETWEEN_LONG = 3, 2, 1
"""Plain runs between the rounds of the self-check, where nobody asks for a number."""

TRUSTED_STAMPS = 0.02
"""Share of the timing run that its stamps may take for the rest to be a plain run's time. What a stamp in a hot loop
takes depends on the loop: between nothing and several times what is assumed."""

PAIR = 2
"""Plain runs that tell a spread, where the timing run cannot be one of two."""

VOTING = 3
"""Runs that ET_ref should come from. Where fewer plain ones are made the timing run is one of them."""


@dataclass(frozen=True)
class FullRuns:
    """How often the whole program is run, beside the traced run, the timing run and one for checkpoints.

    early    plain runs right behind the timing run; before it for exact traces
    own      runs in the caller's own environment
    again    stamped runs right behind the timing run
    between  stamped plain runs between the rounds of the self-check
    few      whether runs stand in for each other, and more of them are made on demand alone
    at_once  whether checkpoints are taken in the timing run
    """

    early: int
    own: int
    again: int
    between: int
    few: bool
    at_once: bool = False


def full_runs_for(
    seconds: float, wanted: int | None = None, *, by_itself: bool = True, apart: bool = False
) -> FullRuns:
    """The runs of a program that takes so many seconds. `wanted`: plain runs asked for, None: by the length.

    `by_itself`: it is one process with one thread, traced at its own speed: then the timing run shows its clock, and
    the traced run where to take checkpoints. `apart`: they are to be taken in a run of their own nevertheless.
    """
    if seconds < FEW_SECONDS:
        again = min(AGAIN_RUNS, int(AGAIN_SECONDS / max(seconds, 1e-3)))
        return FullRuns(EARLY_RUNS, 1, again, BETWEEN_SHORT if wanted is None else wanted, few=False)
    usual = BETWEEN_LONG if seconds >= LONG_SECONDS else BETWEEN_FEW
    between = usual if wanted is None else wanted
    return FullRuns(0 if by_itself else 1, 0, 0, between, few=True, at_once=by_itself and not apart)


def trusted(stamped: float) -> bool:
    """Whether the timing run tells how long the program takes, of which stamps took the share `stamped`."""
    return stamped <= TRUSTED_STAMPS


def made_again(seconds: float, partly: bool) -> bool:
    """Whether a timing run of so many seconds that diverged is made once more; `partly`: most of it was as traced.

    Some programs differ in one run of six, and then in a part of it. What goes by the clock or by chance differs all
    through: a second run says the same, later.
    """
    return seconds <= REPEATED_SECONDS or (partly and seconds < FEW_SECONDS)


def between_runs(plan: FullRuns, wanted: int | None, stamped: float) -> int:
    """Plain runs between the rounds, where stamps took the share `stamped` of the timing run: one at least where that
    run does not tell how long the program takes, two where nobody asks for a number."""
    if trusted(stamped):
        return plan.between
    return max(plan.between, PAIR if wanted is None else 1)


def length(wall: float, cpu: float) -> float:
    """How long a program takes that took so many seconds: other load, which makes it slower, must not make it long."""
    return min(wall, cpu)


def traced_alone(profile: Profile) -> bool:
    """Whether the traced run shows how long the program takes, and that it is one process with one thread."""
    program, threads = profile.program, profile.program.threads + profile.helper_threads
    return profile.unit == SECONDS and not profile.processes and threads == 1 and program.worker is None


def full_runs_of(
    profile: Profile, reference: Reference | None, wanted: int | None, *, apart: bool = False
) -> FullRuns | None:
    """The runs of a traced program; None where its first plain run, in `reference`, has to tell how long it takes.
    `apart` as for `full_runs_for`."""
    if profile.unit == SECONDS:
        seconds = length(float(profile.seconds.sum()), profile.cpu_seconds)
    elif reference is not None:
        seconds = length(reference.early_wall[0], reference.early_cpu[0])
    else:
        return None
    return full_runs_for(seconds, wanted, by_itself=traced_alone(profile), apart=apart)
