# SPDX-License-Identifier: Apache-2.0
"""Spend a budget of seconds where the interval shrinks most for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probe.prediction.variance import CALIBRATED_ALONE, Term, half_width

FULL_RUNS = "reference_runs"


@dataclass
class Means:
    """One thing that seconds can be spent on: `made` of it so far, at most `most`, each taking `seconds`.

    causes: terms of the variance that shrink as more are made.
    make: makes so many more.
    besides: seconds that making any number at once takes on top.
    """

    causes: tuple[str, ...]
    made: int
    most: int
    seconds: float
    make: Callable[[int], None]
    besides: float = 0.0

    def cost(self, count: int) -> float:
        """Seconds that so many more take when they are made at once."""
        return max(count * self.seconds + self.besides, 1e-9)

    def took(self, seconds: float, count: int) -> None:
        """Learn from so many more: what they took just now says best what the next ones will take."""
        self.made += count
        self.seconds = max(seconds - self.besides, 0.0) / count

    def narrowed(self, terms: Sequence[Term], count: int) -> list[Term]:
        """The terms with so many more, spread as before."""
        factor = (self.made + count) / self.made
        return [self._narrowed(term, factor) if term.cause in self.causes else term for term in terms]

    @staticmethod
    def _narrowed(term: Term, factor: float) -> Term:
        """More full runs tell ET_ref better; the noise of the one future run stays, but is known better."""
        stays = term.cause == FULL_RUNS and term.of != CALIBRATED_ALONE
        made = term.repeated(factor)
        return replace(made, variance=term.variance) if stays else made

    def affordable(self, left: float) -> int:
        """How many more at once: not more than there are, since the spread seen so far may mislead."""
        return min(self.made, self.most - self.made, int((left - self.besides) / max(self.seconds, 1e-9)))


def next_purchase(
    means: Sequence[Means], terms: Sequence[Term], target: float, left: float, confidence: float
) -> tuple[Means, int] | None:
    """What to make next, and how many: what narrows the interval most for each second, as many as reach `target` or as
    can be made at once. None where nothing is affordable, or nothing would narrow the interval by a hundredth of it."""
    now = half_width(terms, confidence)
    best: tuple[float, Means, int] | None = None
    for one in means:
        count = one.affordable(left)
        if count < 1:
            continue
        gain = now - half_width(one.narrowed(terms, count), confidence)
        worth = gain / one.cost(count)
        if gain > _WORTH * now and (best is None or worth > best[0]):
            best = worth, one, count
    if best is None:
        return None
    _, one, count = best
    enough = (n for n in range(1, count) if half_width(one.narrowed(terms, n), confidence) <= target)
    return one, next(enough, count)


_WORTH = 0.01
