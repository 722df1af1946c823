# SPDX-License-Identifier: Apache-2.0
"""Machines of Aspen models: which resources a socket has, how many of each, and the seconds a use of them takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.expressions import Environment, Settings, natural, number

INTERCONNECT, LINK = "interconnect", "link"
MESSAGE_RESOURCES = ("comm", "messages")
"""Names by which an interconnect's resource may take communication, the first one that there is."""

OVERLAP = "overlap"
"""Property of an interconnect: the share of communication that hides behind computing, 0 to 1."""

_MOST_LEVELS = 10


@dataclass(frozen=True)
class Available:
    """A resource as a socket has it. copies: how many of its component work side by side there."""

    provided: s.Provided
    component: s.Component
    copies: int

    def seconds(self, amount: float, traits: tuple[str, ...], known: Environment) -> float:
        """Time of so much of it on one copy, each trait that it knows applied in the order given."""
        found = number(self.provided.seconds, {**known, self.provided.formal: amount})
        for trait in traits:
            if trait in self.provided.modifiers:
                modifier = self.provided.modifiers[trait].value
                found = number(modifier, {**known, self.provided.formal: amount, "base": found})
        if found < 0:
            raise ModelInvalid(f"{self.provided.place}: {self.provided.name} of {amount:g} takes {found:g} s")
        return found

    def conflicts_with(self, other: Available) -> bool:
        """Whether the two add up instead of overlapping."""
        if self.component.name != other.component.name:
            return False
        pair = {self.provided.name, other.provided.name}
        return any(pair <= group for group in self.component.conflicts)


@dataclass(frozen=True)
class Machine:
    """One machine with one of its sockets chosen. watts: static power of a node, and dynamic by resource."""

    name: str
    node: str
    socket: str
    nodes: int
    resources: Mapping[str, Available]
    known: Environment
    static_watts: float
    overlap: float

    def find(self, use: s.Use) -> Available:
        """The resource of a use. Raises ModelInvalid, naming what the socket has."""
        names = MESSAGE_RESOURCES if use.resource in MESSAGE_RESOURCES else (use.resource,)
        for name in names:
            if name in self.resources:
                return self.resources[name]
        has = ", ".join(sorted(self.resources)) or "none"
        raise ModelInvalid(
            f"{use.place}: machine {self.name} has no resource {use.resource} for socket {self.socket}: it has {has}"
        )


def read_machine(source: s.Source, settings: Settings, socket: str = "", file: str = "the model") -> Machine:
    """The machine that a source describes, seen from one kind of socket; the first one if none is named.

    file: what a complaint about the whole source calls it.
    Raises ModelInvalid: no machine or more than one, unknown parts, no such socket, a resource in two places.
    """
    machines = [c for c in source.components.values() if c.kind == "machine"]
    if len(machines) != 1:
        found = ", ".join(c.name for c in machines) or "none"
        raise ModelInvalid(f"{file}: a machine model has one machine; found: {found}")
    parameters = [*source.parameters, *(p for c in source.components.values() for p in c.parameters)]
    known = settings.resolve(parameters, {})
    ways = [way for way in _ways(source, machines[0], known, (), 1) if way[-1][0].kind == "socket"]
    names = list(dict.fromkeys(way[-1][0].name for way in ways))
    if not ways or (socket and socket not in names):
        raise ModelInvalid(
            f"{machines[0].place}: machine {machines[0].name} has no socket {socket or 'at all'}"
            + (f": it has {', '.join(names)}" if names else "")
        )
    chosen = next(way for way in ways if not socket or way[-1][0].name == socket)
    return _seen_from(source, chosen, known)


_Way = tuple[tuple[s.Component, int], ...]


def _ways(source: s.Source, component: s.Component, known: Environment, above: _Way, count: int) -> Iterator[_Way]:
    """All components below one, each as its way down from the machine, with how many of it its parent has."""
    way = (*above, (component, count))
    if len(way) > _MOST_LEVELS or component.name in [c.name for c, _ in above]:
        raise ModelInvalid(f"{component.place}: {component.name} contains itself")
    yield way
    for child in component.children:
        if child.name not in source.components:
            raise ModelInvalid(f"{child.place}: {child.kind} {child.name} is not defined")
        found = source.components[child.name]
        if found.kind != child.kind:
            raise ModelInvalid(f"{child.place}: {child.name} is a {found.kind}, not a {child.kind}")
        number_of = natural(child.count, known, f"the number of {child.name}", child.place)
        yield from _ways(source, found, known, way, number_of)


def _seen_from(source: s.Source, way: _Way, known: Environment) -> Machine:
    machine, socket = way[0][0], way[-1][0]
    node = next(((c, n) for c, n in way if c.kind == "node"), (machine, 1))
    resources: dict[str, Available] = {}
    overlap = 0.0
    for component, copies in _reachable(source, way, known):
        for name, provided in component.provided.items():
            if name in resources and resources[name].component.name != component.name:
                raise ModelInvalid(
                    f"{provided.place}: {name} is also a resource of {resources[name].component.name}: one place each"
                )
            resources[name] = Available(provided, component, max(copies, 1))
        if OVERLAP in component.properties:
            overlap = number(component.properties[OVERLAP], known)
            if not 0 <= overlap <= 1:
                raise ModelInvalid(f"{component.place}: {OVERLAP} is {overlap:g}, not 0 to 1")
    watts = sum(
        number(below[-1][0].static_power, known) * _times(below)
        for below in _ways(source, node[0], known, (), 1)
        if below[-1][0].static_power is not None
    )
    return Machine(machine.name, node[0].name, socket.name, node[1], resources, known, watts, overlap)


def _times(way: _Way) -> int:
    product = 1
    for _, count in way[1:]:
        product *= count
    return product


def _reachable(source: s.Source, way: _Way, known: Environment) -> Iterator[tuple[s.Component, int]]:
    """The socket and all below it, then what its node and machine have beside sockets and nodes."""
    socket = way[-1][0]
    for below in _ways(source, socket, known, (), 1):
        yield below[-1][0], _times(below)
    for component, _ in way[:-1]:
        yield component, 1
        for child in component.children:
            if child.kind not in ("node", "socket"):
                for below in _ways(source, source.components[child.name], known, (), 1):
                    yield below[-1][0], _times(below)
