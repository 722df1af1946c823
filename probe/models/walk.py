# SPDX-License-Identifier: Apache-2.0
"""Walk through an application's control flow, as it stands (loops once) or unrolled (every turn)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.expressions import Environment, Settings, natural, number

MOST_CALLS = 200
"""Kernels that call each other so deep call each other without end."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Flow:
    """An application with the values of its parameters."""

    application: s.Application
    known: Environment


def application_of(source: s.Source, settings: Settings, name: str = "") -> s.Application:
    """The named application of a source, or its only one.

    Raises ModelInvalid: none, several and no name, an unknown name, a setting that no parameter takes.
    """
    applications = source.applications
    if name and name not in applications:
        raise ModelInvalid(f"no model {name}: there is {', '.join(applications) or 'none'}")
    if not name and len(applications) != 1:
        raise ModelInvalid(f"which model? --model names one of: {', '.join(applications) or 'none, the file has none'}")
    chosen = applications[name] if name else next(iter(applications.values()))
    parameters = [parameter.name for parameter in (*source.parameters, *chosen.parameters)]
    unknown = set(settings.values) - set(parameters)
    if unknown:
        has = ", ".join(parameters) or "none"
        raise ModelInvalid(f"--set {min(unknown)}: model {chosen.name} has no such parameter; it has {has}")
    return chosen


def flow_of(source: s.Source, settings: Settings, name: str = "") -> Flow:
    """The application that `application_of` finds, with all parameters' values. Raises ModelInvalid."""
    chosen = application_of(source, settings, name)
    return Flow(chosen, settings.resolve([*source.parameters, *chosen.parameters], {}))


class Visitor(Protocol[Result]):
    """What a walk makes of each part: a result of its own kind, and results put together."""

    def execute(self, block: s.Execute, known: Environment, beside: int) -> Result:
        """A block of resources, of which so many run beside each other (the maps around it, walked implicitly)."""

    def sequence(self, parts: list[Result]) -> Result:
        """One after the other."""

    def beside(self, parts: list[Result]) -> Result:
        """At the same time."""

    def repeat(self, body: Result, count: int) -> Result:
        """So often, one after the other."""

    def weighted(self, parts: list[tuple[float, Result]]) -> Result:
        """By chance: shares and results. A visitor that needs one course of events draws instead."""

    def kernel(self, name: str, body: Result) -> Result:
        """A kernel's call."""


@dataclass(frozen=True)
class _Around:
    """What is known at a statement, the kernels that called its own, and how many of it maps run beside each other."""

    known: Environment
    above: tuple[str, ...]
    beside: int = 1


class Walker:
    """Walks implicitly: a loop's body is visited once and repeated by the visitor.

    `explicit`: a body is visited once a turn, chances and samples are drawn from `seed`. Raises ModelInvalid.
    """

    def __init__(self, flow: Flow, *, explicit: bool = False, seed: int = 0, most_turns: int = 10_000_000) -> None:
        self._flow = flow
        self._explicit = explicit
        self._draw = random.Random(seed)
        self._turns = most_turns

    def walk(self, visitor: Visitor[Result]) -> Result:
        """The visitor's result of the whole application."""
        main = self._flow.application.kernels["main"]
        return visitor.kernel("main", self._block(main.body, _Around(self._flow.known, ("main",)), visitor))

    def _block(self, block: s.Block, around: _Around, visitor: Visitor[Result]) -> Result:
        own = dict(around.known)
        parts: list[Result] = []
        for statement in block.statements:
            if isinstance(statement, s.Let):
                own[statement.name] = number(statement.value, own)
            elif isinstance(statement, s.Sample):
                own[statement.name] = self._sampled(statement, own)
            else:
                parts.append(self._statement(statement, replace(around, known=own), visitor))
        return visitor.sequence(parts)

    def _statement(self, statement: s.Statement, around: _Around, visitor: Visitor[Result]) -> Result:
        if isinstance(statement, s.Execute):
            return visitor.execute(statement, around.known, around.beside)
        if isinstance(statement, s.Call):
            return self._call(statement, around, visitor)
        if isinstance(statement, s.Repeat):
            return self._repeat(statement, around, visitor)
        if isinstance(statement, s.Beside):
            return visitor.beside([self._statement(x, around, visitor) for x in statement.body.statements])
        if isinstance(statement, s.Branch):
            chosen = statement.then if number(statement.condition, around.known) else statement.otherwise
            return self._block(chosen, around, visitor)
        if isinstance(statement, s.Chance):
            return self._chance(statement, around, visitor)
        if isinstance(statement, s.Switch):
            value = number(statement.value, around.known)
            chosen = next((b for v, b in statement.cases if number(v, around.known) == value), statement.default)
            return self._block(chosen, around, visitor)
        if isinstance(statement, s.Block):
            return self._block(statement, around, visitor)
        raise ModelInvalid(f"{statement.place}: a parameter cannot stand beside others in par")

    def _call(self, call: s.Call, around: _Around, visitor: Visitor[Result]) -> Result:
        kernels: Mapping[str, s.Kernel] = self._flow.application.kernels
        if call.kernel not in kernels:
            raise ModelInvalid(f"{call.place}: there is no kernel {call.kernel}: there are {', '.join(kernels)}")
        kernel = kernels[call.kernel]
        if call.kernel in around.above or len(around.above) > MOST_CALLS:
            chain = " calls ".join([*around.above, call.kernel])
            raise ModelInvalid(f"{call.place}: {chain}: recursion has no price")
        if len(call.arguments) != len(kernel.formals):
            raise ModelInvalid(
                f"{call.place}: {call.kernel} takes {len(kernel.formals)} arguments, not {len(call.arguments)}"
            )
        values = {name: number(value, around.known) for name, value in zip(kernel.formals, call.arguments, strict=True)}
        inside = _Around({**self._flow.known, **values}, (*around.above, call.kernel), around.beside)
        return visitor.kernel(call.kernel, self._block(kernel.body, inside, visitor))

    def _repeat(self, loop: s.Repeat, around: _Around, visitor: Visitor[Result]) -> Result:
        count = natural(loop.count, around.known, "the count of a loop", loop.place)
        if not self._explicit and loop.parallel:
            return self._block(loop.body, replace(around, beside=around.beside * count), visitor)
        if not self._explicit:
            return visitor.repeat(self._block(loop.body, around, visitor), count)
        self._turns -= count
        if self._turns < 0:
            raise ModelInvalid(f"{loop.place}: too many turns to unroll; walk implicitly")
        turns = [self._block(loop.body, around, visitor) for _ in range(count)]
        return visitor.beside(turns) if loop.parallel else visitor.sequence(turns)

    def _chance(self, chance: s.Chance, around: _Around, visitor: Visitor[Result]) -> Result:
        share = number(chance.share, around.known)
        if not 0 <= share <= 1:
            raise ModelInvalid(f"{chance.place}: a probability of {share:g}")
        if self._explicit:
            chosen = chance.then if self._draw.random() < share else chance.otherwise
            return self._block(chosen, around, visitor)
        parts = ((share, chance.then), (1 - share, chance.otherwise))
        return visitor.weighted([(p, self._block(block, around, visitor)) for p, block in parts])

    def _sampled(self, sample: s.Sample, known: Environment) -> float:
        """A value drawn, or the distribution's mean where the walk is implicit."""
        values = [number(argument, known) for argument in sample.arguments]
        wanted = {"uniform": 2, "normal": 2, "exponential": 1}.get(sample.distribution)
        if wanted != len(values):
            raise ModelInvalid(
                f"{sample.place}: sample from uniform(low, high), normal(mean, deviation) or exponential(mean)"
            )
        if sample.distribution == "uniform":
            return self._draw.uniform(*values) if self._explicit else sum(values) / 2
        if not self._explicit:
            return values[0]
        if sample.distribution == "normal":
            return self._draw.gauss(*values)
        return self._draw.expovariate(1 / values[0]) if values[0] > 0 else 0.0
