# SPDX-License-Identifier: Apache-2.0
"""Communication of Aspen models: patterns of a `comm` resource, as collectives or messages between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.expressions import Environment, natural, number
from probe.models.machine import MESSAGE_RESOURCES

COLLECTIVES: Final = ("allgather", "allreduce", "alltoall", "barrier", "bcast", "reduce")
REDUCTIONS: Final = ("max", "min", "prod", "sum")
NEAREST, OFFSET = "nn3d", "offset"
PARTS: Final = ("face", "edge", "corner")
"""By the number of directions in which a neighbour differs: 1, 2, 3."""

UP, PERIODIC = "up", "periodic"
"""Messages go from lower ranks to higher ones alone; the grid's ends are neighbours."""

MOST_RANKS = 4_000_000

Offset = tuple[int, int, int]
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Collective:
    """One call of all ranks: `count` elements of `size` bytes; `reduction` where the kind has one."""

    kind: str
    count: int
    size: int
    reduction: str

    @property
    def bytes(self) -> int:
        return self.count * self.size


@dataclass(frozen=True)
class Exchange:
    """Messages to neighbours in a grid of ranks: how many elements of `size` bytes go which way."""

    elements: dict[Offset, int]
    size: int
    up: bool
    periodic: bool


def communicates(use: s.Use) -> bool:
    """Whether a use of a resource is communication."""
    return use.resource in MESSAGE_RESOURCES


def communication(use: s.Use, known: Environment) -> Collective | Exchange:
    """What the traits of a `comm` resource say. Raises ModelInvalid for what has no pattern here."""
    count = natural(use.amount, known, "an amount of communication", use.place)
    size = 1 if use.size is None else natural(use.size, known, "a size", use.place)
    names = [trait.name for trait in use.traits]
    kinds = list(dict.fromkeys(name for name in names if name in (*COLLECTIVES, NEAREST, OFFSET)))
    if len(kinds) != 1:
        known_kinds = ", ".join([*COLLECTIVES, NEAREST, OFFSET])
        raise ModelInvalid(f"{use.place}: communication is one of {known_kinds}; found {' and '.join(kinds) or 'none'}")
    if kinds[0] in COLLECTIVES:
        reduction = next((name for name in names if name in REDUCTIONS), "sum")
        _refuse_others(use, {kinds[0], *REDUCTIONS})
        return Collective(kinds[0], count, size, reduction if "reduce" in kinds[0] else "")
    if kinds[0] == OFFSET:
        _refuse_others(use, {OFFSET, PERIODIC})
        return Exchange(_offsets(use, count, known), size, False, PERIODIC in names)
    _refuse_others(use, {NEAREST, *PARTS, UP, PERIODIC})
    parts = [part for part in PARTS if part in names] or list(PARTS)
    elements = {offset: count ** (3 - _differs(offset)) for offset in _around() if PARTS[_differs(offset) - 1] in parts}
    return Exchange(elements, size, UP in names, PERIODIC in names)


def sent_elements(use: s.Use, count: Any) -> Any:
    """How many elements an inner rank sends, of a count that may be a formula."""
    names = [trait.name for trait in use.traits]
    if NEAREST in names:
        parts = [part for part in PARTS if part in names] or list(PARTS)
        around = sum(count ** (3 - _differs(offset)) for offset in _around() if PARTS[_differs(offset) - 1] in parts)
        return around / 2 if UP in names else around
    return count * max(1, len({trait.arguments for trait in use.traits if trait.name == OFFSET}))


def _refuse_others(use: s.Use, allowed: set[str]) -> None:
    other = [trait.name for trait in use.traits if trait.name not in allowed]
    if other:
        raise ModelInvalid(f"{use.place}: '{other[0]}' means nothing here; {', '.join(sorted(allowed))} do")


def _offsets(use: s.Use, count: int, known: Environment) -> dict[Offset, int]:
    found = {}
    for trait in use.traits:
        if trait.name == OFFSET:
            values = [int(number(argument, known)) for argument in trait.arguments]
            if len(values) != 3 or not any(values):
                raise ModelInvalid(f"{trait.place}: offset(x, y, z) names another rank")
            found[(values[0], values[1], values[2])] = count
    return found


def _around() -> Iterator[Offset]:
    steps = (-1, 0, 1)
    return ((x, y, z) for x, y, z in product(steps, steps, steps) if x or y or z)


def _differs(offset: Offset) -> int:
    return sum(step != 0 for step in offset)


def grid_of(text: str) -> Grid:
    """`4x4x4` as three numbers; missing ones are 1. Raises ModelInvalid."""
    try:
        sides = [int(part) for part in text.lower().split("x")]
    except ValueError:
        sides = []
    ranks = 1
    for side in sides:
        ranks *= side
    if not 1 <= len(sides) <= 3 or min(sides) < 1 or ranks > MOST_RANKS:
        raise ModelInvalid(f"{text}: a grid of ranks is written 4x4x4, with {MOST_RANKS} ranks at most")
    sides += [1] * (3 - len(sides))
    return sides[0], sides[1], sides[2]


def size_of(grid: Sequence[int]) -> int:
    """How many ranks a grid has."""
    return grid[0] * grid[1] * grid[2]


def position(rank: int, grid: Grid) -> Offset:
    """Where a rank is in the grid; the first coordinate goes fastest."""
    return rank % grid[0], rank // grid[0] % grid[1], rank // (grid[0] * grid[1])


def rank_at(place: Offset, grid: Grid) -> int:
    """The rank at a place inside the grid."""
    return place[0] + grid[0] * (place[1] + grid[1] * place[2])


def sends(exchange: Exchange, rank: int, grid: Grid) -> Iterator[tuple[int, int, Offset]]:
    """(receiver, elements, offset) of each message that a rank sends, in order of the offsets.

    A rank is never its own neighbour.
    """
    here = position(rank, grid)
    for offset, elements in exchange.elements.items():
        x, y, z = (at + step for at, step in zip(here, offset, strict=True))
        if exchange.periodic:
            x, y, z = x % grid[0], y % grid[1], z % grid[2]
        if not (0 <= x < grid[0] and 0 <= y < grid[1] and 0 <= z < grid[2]):
            continue
        receiver = rank_at((x, y, z), grid)
        if receiver != rank and not (exchange.up and receiver < rank):
            yield receiver, elements, offset


def receives(exchange: Exchange, rank: int, grid: Grid) -> Iterator[tuple[int, int, Offset]]:
    """(sender, elements, sender's offset) of each message that comes to a rank."""
    opposite = Exchange(
        {(-x, -y, -z): n for (x, y, z), n in exchange.elements.items()}, exchange.size, False, exchange.periodic
    )
    for sender, elements, (x, y, z) in sends(opposite, rank, grid):
        if not (exchange.up and sender > rank):
            yield sender, elements, (-x, -y, -z)
