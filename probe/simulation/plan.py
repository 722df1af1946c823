# SPDX-License-Identifier: Apache-2.0
"""Plans of an application: the computing, collectives, exchanges and loops of every rank, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.communication import Collective, Exchange, Grid, communicates, communication, receives, sends, size_of
from probe.models.cost import Pricing
from probe.models.expressions import Environment
from probe.models.machine import Machine
from probe.models.walk import Flow, Walker


@dataclass(frozen=True)
class Compute:
    """So many seconds of computing on the machine at hand."""

    seconds: float


@dataclass(frozen=True)
class Loop:
    """Steps repeated; only an implicit plan has loops."""

    count: int
    body: tuple[Step, ...]


Step: TypeAlias = "Compute | Collective | Exchange | Loop"


@dataclass(frozen=True)
class Datatype:
    """MPI's name, SMPI's number in a time-independent trace, bytes."""

    name: str
    number: int
    bytes: int


_TYPES = (Datatype("MPI_DOUBLE", 0, 8), Datatype("MPI_FLOAT", 5, 4), Datatype("MPI_BYTE", 6, 1))
"""The first one that divides an element's size carries it."""


@dataclass(frozen=True)
class Transfer:
    """A message of a rank: with whom, its tag, how many values of a type."""

    other: int
    tag: int
    values: int


def plan(
    flow: Flow,
    machine: Machine | None = None,
    *,
    explicit: bool = False,
    seed: int = 0,
    probes: Mapping[str, float] | None = None,
) -> tuple[Step, ...]:
    """The steps of every rank. Without a machine computing is left out. Raises ModelInvalid."""
    visitor = _Planning(None if machine is None else Pricing(machine, 1, probes or {}))
    return Walker(flow, explicit=explicit, seed=seed).walk(visitor)


def datatype(step: Collective | Exchange) -> Datatype:
    """The type whose values its elements are."""
    return next(kind for kind in _TYPES if step.size % kind.bytes == 0)


def values(elements: int, step: Collective | Exchange) -> int:
    """How many values of `datatype` so many elements are."""
    return elements * step.size // datatype(step).bytes


def transfers(step: Exchange, rank: int, grid: Grid) -> tuple[list[Transfer], list[Transfer]]:
    """(receives, sends) of a rank. Tags are those of the sender's direction."""
    tags = {offset: number for number, offset in enumerate(step.elements)}
    coming = [Transfer(other, tags[o], values(n, step)) for other, n, o in receives(step, rank, grid)]
    going = [Transfer(other, tags[o], values(n, step)) for other, n, o in sends(step, rank, grid)]
    return coming, going


def unrolled(steps: tuple[Step, ...]) -> Iterator[Compute | Collective | Exchange]:
    """The steps as they follow each other, loops gone."""
    for step in steps:
        if isinstance(step, Loop):
            for _ in range(step.count):
                yield from unrolled(step.body)
        else:
            yield step


def length(steps: tuple[Step, ...]) -> int:
    """How many steps `unrolled` gives."""
    return sum(step.count * length(step.body) if isinstance(step, Loop) else 1 for step in steps)


def refuse_unfit(steps: tuple[Step, ...], grid: Grid) -> None:
    """Raises ModelInvalid for steps that ranks of such a grid cannot take."""
    if any(isinstance(step, Exchange) for step in unrolled_once(steps)) and size_of(grid) < 2:
        raise ModelInvalid("messages need two ranks at least: --grid 2x1x1")


def unrolled_once(steps: tuple[Step, ...]) -> Iterator[Compute | Collective | Exchange]:
    """Every step that occurs, loops' bodies once."""
    for step in steps:
        if isinstance(step, Loop):
            yield from unrolled_once(step.body)
        else:
            yield step


class _Planning:
    """Visitor that plans."""

    def __init__(self, pricing: Pricing | None) -> None:
        self._pricing = pricing

    def execute(self, block: s.Execute, known: Environment, beside: int) -> tuple[Step, ...]:
        found: list[Step] = []
        computing = replace(block, uses=tuple(use for use in block.uses if not communicates(use)))
        if self._pricing is not None and computing.uses:
            found.append(Compute(self._pricing.execute(computing, known, beside).seconds))
        exchanged = [communication(use, known) for use in block.uses if communicates(use)]
        return (*found, *(exchanged * beside))

    def sequence(self, parts: list[tuple[Step, ...]]) -> tuple[Step, ...]:
        return tuple(step for part in parts for step in part)

    beside = sequence

    def repeat(self, body: tuple[Step, ...], count: int) -> tuple[Step, ...]:
        return (Loop(count, body),) if body and count else ()

    def weighted(self, parts: list[tuple[float, tuple[Step, ...]]]) -> tuple[Step, ...]:
        if any(part for _, part in parts):
            raise ModelInvalid("chance has no one course of events: generate with --mode explicit")
        return ()

    def kernel(self, name: str, body: tuple[Step, ...]) -> tuple[Step, ...]:
        return body
