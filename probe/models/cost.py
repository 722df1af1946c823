# SPDX-License-Identifier: Apache-2.0
"""Prices of applications on machines: the roofline of each block, summed along the control flow.

Resources in conflict add up, others overlap; communication is added but for the machine's share of overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.communication import Collective, communicates, communication
from probe.models.expressions import Environment, natural, number
from probe.models.machine import Machine
from probe.models.walk import Flow, Walker

PROBE = "probe"
"""Resource of one's own: so many runs of what a probe predicts, `as NAME`."""


Amounts = dict[str, float]


@dataclass(frozen=True)
class Cost:
    """Of one rank. Seconds in all, of them in communication outside of computing; amounts by resource (flops, bytes,
    bytes sent for communication); inclusive seconds by kernel; seconds in which each resource was busy."""

    seconds: float = 0.0
    communication: float = 0.0
    amounts: Amounts = field(default_factory=dict)
    kernels: Amounts = field(default_factory=dict)
    busy: Amounts = field(default_factory=dict)

    def times(self, factor: float) -> Cost:
        """The same so often."""
        return Cost(
            self.seconds * factor, self.communication * factor,
            *({k: v * factor for k, v in part.items()} for part in (self.amounts, self.kernels, self.busy)),
        )  # fmt: skip


def price(flow: Flow, machine: Machine, *, ranks: int = 1, probes: Mapping[str, float] | None = None) -> Cost:
    """Cost of one rank of the application.

    ranks: how many take part in its communication. probes: seconds on this node, by the name behind `probe as`.
    Raises ModelInvalid.
    """
    return Walker(flow).walk(Pricing(machine, ranks, probes or {}))


def energy(cost: Cost, machine: Machine) -> float:
    """Joules of a node: its static power over the whole time, dynamic power while resources are busy."""
    joules = machine.static_watts * cost.seconds
    for name, seconds in cost.busy.items():
        if name not in machine.resources:
            continue
        component = machine.resources[name].component
        if component.dynamic_power is not None:
            joules += number(component.dynamic_power, machine.known) * seconds
    return joules


class Pricing:
    """Visitor that prices for one rank of so many; `probes`: seconds by name."""

    def __init__(self, machine: Machine, ranks: int, probes: Mapping[str, float]) -> None:
        self._machine, self._ranks, self._probes = machine, ranks, probes

    def execute(self, block: s.Execute, known: Environment, beside: int) -> Cost:
        own = 1 if block.instances is None else natural(block.instances, known, "a number of instances", block.place)
        instances = beside * own
        amounts: Amounts = {}
        busy: Amounts = {}
        messages = probed = 0.0
        for use in block.uses:
            if use.resource == PROBE:
                probed += self._probed(use, known) * instances
            elif communicates(use):
                sent, seconds = self._messages(use, known)
                _add(amounts, {use.resource: float(sent * instances)})
                messages += seconds * instances
            else:
                amount = _amount(use, known)
                _add(amounts, {use.resource: amount * instances})
                _add(busy, {use.resource: self._seconds(use, amount, known, instances)})
        computing = self._roofline(busy) + probed
        hidden = min(messages, computing) * self._machine.overlap
        total = computing + messages - hidden
        times = busy | ({"comm": messages} if messages else {})
        return Cost(total, messages - hidden, amounts, {}, times)

    def _seconds(self, use: s.Use, amount: float, known: Environment, instances: int) -> float:
        available = self._machine.find(use)
        rounds = max(1.0, instances / available.copies) if instances else 0.0
        traits = tuple(trait.name for trait in use.traits)
        return available.seconds(amount, traits, {**self._machine.known, **_values(use, known)}) * rounds

    def _probed(self, use: s.Use, known: Environment) -> float:
        names = [trait.name for trait in use.traits]
        if len(names) != 1 or names[0] not in self._probes:
            wanted = " ".join(names) or "a name"
            raise ModelInvalid(f"{use.place}: no seconds for the probe {wanted}: --probe {wanted}=SECONDS")
        return number(use.amount, known) * self._probes[names[0]]

    def _messages(self, use: s.Use, known: Environment) -> tuple[float, float]:
        """(bytes that an inner rank sends, seconds for them)."""
        found = communication(use, known)
        available = self._machine.find(use)
        if isinstance(found, Collective):
            steps = math.ceil(math.log2(self._ranks)) if self._ranks > 1 else 0
            return found.bytes * min(steps, 1), steps * available.seconds(found.bytes, (), self._machine.known)
        sizes = [elements * found.size for elements in found.elements.values()]
        share = 0.5 if found.up else 1.0
        if self._ranks == 1:
            return 0.0, 0.0
        seconds = sum(available.seconds(size, (), self._machine.known) for size in sizes)
        return share * sum(sizes), share * seconds

    def _roofline(self, busy: Mapping[str, float]) -> float:
        """The longest of the resources, those in conflict summed."""
        longest = 0.0
        for name in busy:
            mine = self._machine.resources[name]
            against = [n for n in busy if n == name or mine.conflicts_with(self._machine.resources[n])]
            longest = max(longest, sum(busy[n] for n in against))
        return longest

    def sequence(self, parts: list[Cost]) -> Cost:
        return _sum(parts, sum(part.seconds for part in parts), sum(part.communication for part in parts))

    def beside(self, parts: list[Cost]) -> Cost:
        if not parts:
            return Cost()
        longest = max(parts, key=lambda part: part.seconds)
        return _sum(parts, longest.seconds, longest.communication)

    def repeat(self, body: Cost, count: int) -> Cost:
        return body.times(count)

    def weighted(self, parts: list[tuple[float, Cost]]) -> Cost:
        return self.sequence([part.times(share) for share, part in parts])

    def kernel(self, name: str, body: Cost) -> Cost:
        kernels = dict(body.kernels)
        _add(kernels, {name: body.seconds})
        return Cost(body.seconds, body.communication, body.amounts, kernels, body.busy)


def _sum(parts: list[Cost], seconds: float, communication: float) -> Cost:
    amounts: Amounts = {}
    kernels: Amounts = {}
    busy: Amounts = {}
    for part in parts:
        _add(amounts, part.amounts)
        _add(kernels, part.kernels)
        _add(busy, part.busy)
    return Cost(seconds, communication, amounts, kernels, busy)


def _add(into: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0.0) + value


def _amount(use: s.Use, known: Environment) -> float:
    amount = number(use.amount, known) * (1.0 if use.size is None else number(use.size, known))
    if amount < 0:
        raise ModelInvalid(f"{use.place}: {use.resource} of {amount:g}: an amount is 0 or more")
    return amount


def _values(use: s.Use, known: Environment) -> dict[str, float]:
    """Arguments of traits, by the trait's name: a machine's modifier may use them."""
    return {trait.name: number(trait.arguments[0], known) for trait in use.traits if trait.arguments}
