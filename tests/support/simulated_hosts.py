# SPDX-License-Identifier: Apache-2.0
"""Hosts that are not quiet, simulated: a clock, a program in intervals, and what else goes on meanwhile.

Each kind of disturbance is one realization of ten minutes. `python tests/support/simulated_hosts.py 300` prints how
often intervals hold on each, of 300 pairs of hosts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from probe.formats.arrays import FloatArray
from probe.prediction.estimators import PhaseTiming, Prediction, ReferenceRun, predict
from probe.prediction.level import level_of_sum

STEP, LASTS = 0.02, 600.0
PHASES, INTERVALS = 10, 100
INTERVAL, RESTORING = 0.02, 0.06
"""Seconds of an interval, and of restoring a phase with its warm-up."""

SELECTION_ERROR = 0.01
"""Of intervals held out; the direct estimate's work is right, so that this is more than there is."""

_STEPS = int(LASTS / STEP)


def bursts(rng: np.random.Generator, seconds: float = LASTS) -> FloatArray:
    """Whether a competitor is on, every STEP, as 0 or 1: on and off for 0.05 to 5 s by turns."""
    found: list[float] = []
    on = float(rng.integers(2))
    while len(found) * STEP < seconds:
        found += [on] * max(1, int(0.05 * 100 ** rng.uniform() / STEP))
        on = 1.0 - on
    return np.array(found)[: int(seconds / STEP)]


@dataclass(frozen=True)
class Disturbance:
    """What goes on beside the program for LASTS seconds, every STEP.

    slower: steps x PHASES, factor on the CPU time of an interval of that phase that begins then.
    away: share of wall time that others have the processor for, in slices.
    pauses: seconds that wall and CPU time both stand still in that step: the guest does not see its host.
    """

    slower: FloatArray = field(default_factory=lambda: np.ones((1, PHASES)))
    away: FloatArray = field(default_factory=lambda: np.zeros(1))
    pauses: FloatArray = field(default_factory=lambda: np.zeros(1))


Kind = Callable[[np.random.Generator, FloatArray], Disturbance]
"""Makes one, of generator and `effect`: how much each phase suffers, at most 0.4."""


def nothing(_: np.random.Generator, __: FloatArray) -> Disturbance:
    return Disturbance()


def in_bursts(rng: np.random.Generator, effect: FloatArray) -> Disturbance:
    """One competitor, half of the time."""
    return Disturbance(1.0 + np.outer(bursts(rng), effect))


def neighbours(rng: np.random.Generator, effect: FloatArray) -> Disturbance:
    """Two that come and go by themselves: one takes the cache from some phases, one the memory from others."""
    cache, memory = (
        effect * rng.permutation(np.linspace(0, 1, PHASES)),
        effect * rng.permutation(np.linspace(0, 1, PHASES)),
    )
    return Disturbance((1.0 + np.outer(bursts(rng), cache)) * (1.0 + np.outer(bursts(rng), memory)))


def drifting(rng: np.random.Generator, _: FloatArray) -> Disturbance:
    """The clock falls to half within a minute, and rises again."""
    at = 2 * math.pi * (np.arange(_STEPS) * STEP / 120.0 + rng.uniform())
    return Disturbance(np.repeat(2.0 ** (0.5 - 0.5 * np.cos(at))[:, None], PHASES, axis=1))


def one_processor(rng: np.random.Generator, effect: FloatArray) -> Disturbance:
    """The only processor is shared in slices with somebody who comes and goes; the caches are cold after each."""
    on = bursts(rng)
    return Disturbance(1.0 + np.outer(on, effect / 4), away=on / 2)


def paused(rng: np.random.Generator, _: FloatArray) -> Disturbance:
    """The hypervisor stops the guest about twice a second, for 1 to 50 ms."""
    begins = rng.random(_STEPS) < 2 * STEP
    return Disturbance(pauses=np.where(begins, 0.001 * 50 ** rng.random(_STEPS), 0.0))


KINDS: dict[str, Kind] = {
    "quiet": nothing,
    "bursts": in_bursts,
    "neighbours": neighbours,
    "drift": drifting,
    "one processor": one_processor,
    "pauses": paused,
}


class Host:
    """A program of PHASES phases in INTERVALS intervals by turns, on a host `speed` times as slow as the reference."""

    def __init__(self, rng: np.random.Generator, speed: float, what: Disturbance) -> None:
        self._rng, self._speed, self._what = rng, speed, what
        self.now = float(rng.uniform(0, LASTS))

    def _interval(self, at: FloatArray, phase: int) -> tuple[FloatArray, FloatArray]:
        """(wall, CPU) seconds of an interval that begins at each of these times."""
        what, steps = self._what, (at / STEP).astype(int)
        cpu = INTERVAL * self._speed * what.slower[steps % len(what.slower), phase]
        cpu *= np.exp(self._rng.normal(0, 0.01, len(at)))
        stops, ends = what.pauses, ((at + cpu) / STEP).astype(int)
        halves = np.where(ends > steps, 0.5, 1.0)
        cpu += halves * stops[steps % len(stops)] + (1.0 - halves) * stops[ends % len(stops)]
        return cpu / (1.0 - what.away[steps % len(what.away)]), cpu

    def interval(self, phase: int) -> tuple[float, float]:
        """(wall, CPU) seconds of one that begins now."""
        wall, cpu = (float(one[0]) for one in self._interval(np.array([self.now]), phase))
        self.now += wall
        return wall, cpu

    def run(self) -> FloatArray:
        """A full run: INTERVALS x (wall, CPU)."""
        return np.array([self.interval(n % PHASES) for n in range(INTERVALS)])

    def repeats(self, rounds: int) -> FloatArray:
        """Rounds x PHASES x (wall, CPU)."""
        found = np.empty((rounds, PHASES, 2))
        for repeat in range(rounds):
            for phase in range(PHASES):
                self.now += RESTORING
                found[repeat, phase] = self.interval(phase)
        return found

    def mean_run(self, begun: float, ended: float, runs: int = 200) -> float:
        """CPU seconds of full runs that begin between the two, in the mean."""
        at, seconds = np.linspace(begun, ended, runs), 0.0
        for number in range(INTERVALS):
            wall, cpu = self._interval(at, number % PHASES)
            at, seconds = at + wall, seconds + float(cpu.mean())
        return seconds


@dataclass(frozen=True)
class Trial:
    """A prediction, and the truth in CPU seconds: `meanwhile`, the mean of full runs while the phases were timed;
    `later`, at any time; `one`, a single run at any time; `alone`, one with nothing else on the host."""

    said: Prediction
    meanwhile: float
    later: float
    one: float
    alone: float

    def holds(self, truth: float) -> bool:
        return self.said.low <= truth <= self.said.high

    @property
    def holds_alone(self) -> bool:
        if self.said.undisturbed is None:
            return self.holds(self.alone)
        return self.said.undisturbed.low <= self.alone <= self.said.undisturbed.high


def self_check(host: Host, rounds: int, runs: int) -> tuple[list[FloatArray], FloatArray]:
    """CPU seconds of the intervals of full runs, and the phases' repeats, by turns as in a build."""
    made: list[FloatArray] = []
    repeats = []
    for number in range(1, rounds + 1):
        repeats.append(host.repeats(1))
        while len(made) < (number * runs + rounds // 2) // rounds:
            made.append(host.run()[:, 1])
    return made, np.concatenate(repeats)


def trial(rng: np.random.Generator, kind: Kind, *, reference_too: bool, rounds: int = 30, runs: int = 10) -> Trial:
    """Build on one host with so many `runs`, run on another that `kind` disturbs; `reference_too`: the first one as
    well."""
    effect = rng.uniform(0.0, 0.4, PHASES)
    speed = float(rng.uniform(0.5, 2.0))
    reference = Host(rng, 1.0, (kind if reference_too else nothing)(rng, effect))
    candidate = Host(rng, speed, kind(rng, effect))
    made, ref = self_check(reference, 20, runs)
    voted, begun = level_of_sum(made), candidate.now
    cand, ended = candidate.repeats(rounds), candidate.now
    phases = [
        PhaseTiming(
            c, 1 / PHASES, 1 / PHASES, INTERVALS / PHASES, ref[:, c, 0].tolist(), cand[:, c, 0].tolist(), INTERVAL,
            spread=0.01, cpu_ref=ref[:, c, 1].tolist(), cpu_cand=cand[:, c, 1].tolist(), clock="cpu",
        )
        for c in range(PHASES)
    ]  # fmt: skip
    said = predict(
        ReferenceRun(
            [float(run.sum()) for run in made], INTERVALS * INTERVALS / PHASES,
            voted=(voted.seconds, voted.error, voted.noise) if runs > 1 else None, selection_error=SELECTION_ERROR,
        ),
        phases,
    )  # fmt: skip
    alone = INTERVAL * speed * INTERVALS
    whole = candidate.mean_run(begun, ended), candidate.mean_run(0.0, LASTS)
    candidate.now = float(rng.uniform(0, LASTS))
    return Trial(said, *whole, float(candidate.run()[:, 1].sum()), alone)


def coverage(seed: int, trials: int, kind: Kind, *, reference_too: bool, runs: int = 10) -> dict[str, float]:
    """Shares of the trials whose interval holds each of the truths; median half width, and of the error to meanwhile,
    all relative."""
    rng = np.random.default_rng(seed)
    done = [trial(rng, kind, reference_too=reference_too, runs=runs) for _ in range(trials)]
    apart = [one.said.seconds / one.meanwhile - 1 for one in done]
    return {
        "meanwhile": float(np.mean([one.holds(one.meanwhile) for one in done])),
        "later": float(np.mean([one.holds(one.later) for one in done])),
        "one": float(np.mean([one.holds(one.one) for one in done])),
        "alone": float(np.mean([one.holds_alone for one in done])),
        "half width": float(np.median([one.said.half_width for one in done])),
        "error": float(np.median(np.abs(apart))),
        "bias": float(np.median(apart)),
    }


def main() -> None:
    """Print the table."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    columns = ("meanwhile", "later", "one", "alone", "half width", "error", "bias")
    print(f"{'host':14} {'reference':10}", *(f"{name:>10}" for name in columns), flush=True)
    for name, kind in KINDS.items():
        for too in (False, True):
            found = coverage(2011, trials, kind, reference_too=too)
            told = (f"{found[column]:10.1%}" for column in columns)
            print(f"{name:14} {'the same' if too else 'quiet':10}", *told, flush=True)


if __name__ == "__main__":
    main()
