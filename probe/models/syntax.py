# SPDX-License-Identifier: Apache-2.0
"""Syntax of Aspen models as plain data: expressions, applications, machines. Every part knows its file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Place:
    """Where something stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Number:
    """A literal."""

    value: float


@dataclass(frozen=True)
class Name:
    """A parameter, a prefix such as `giga`, or `base` in a machine's modifiers."""

    name: str
    place: Place


@dataclass(frozen=True)
class Operation:
    """`operator`: one of + - * / ^, neg, a function's name, a comparison, and, or, not."""

    operator: str
    operands: tuple[Expression, ...]
    place: Place


Expression: TypeAlias = Number | Name | Operation


@dataclass(frozen=True)
class Parameter:
    """`value` None: it must be given. low, high: the range that the model allows it, both or neither."""

    name: str
    value: Expression | None
    low: Expression | None
    high: Expression | None
    place: Place


@dataclass(frozen=True)
class Trait:
    """A word behind `as`, such as `simd` or `nn3d`, with its arguments."""

    name: str
    arguments: tuple[Expression, ...]
    place: Place


@dataclass(frozen=True)
class Use:
    """A resource used so much: `amount` pieces of `size` (1 where the model says none)."""

    resource: str
    amount: Expression
    size: Expression | None
    data: str
    traits: tuple[Trait, ...]
    place: Place


@dataclass(frozen=True)
class Execute:
    """A block of resources used together, in so many parallel instances."""

    label: str
    instances: Expression | None
    uses: tuple[Use, ...]
    place: Place


@dataclass(frozen=True)
class Call:
    """A kernel called with values of its formal parameters."""

    kernel: str
    arguments: tuple[Expression, ...]
    place: Place


@dataclass(frozen=True)
class Repeat:
    """`parallel`: the repetitions are a map's and run beside each other, else an iterate's."""

    count: Expression
    body: Block
    parallel: bool
    place: Place


@dataclass(frozen=True)
class Beside:
    """Statements that run beside each other (`par`)."""

    body: Block
    place: Place


@dataclass(frozen=True)
class Branch:
    """`if`: a condition, and what runs where it holds or does not."""

    condition: Expression
    then: Block
    otherwise: Block
    place: Place


@dataclass(frozen=True)
class Chance:
    """`probability`: the first block runs in this share of all cases, the other in the rest."""

    share: Expression
    then: Block
    otherwise: Block
    place: Place


@dataclass(frozen=True)
class Switch:
    """The block of the first equal value, or the default."""

    value: Expression
    cases: tuple[tuple[Expression, Block], ...]
    default: Block
    place: Place


@dataclass(frozen=True)
class Let:
    """A parameter of the rest of the block."""

    name: str
    value: Expression
    place: Place


@dataclass(frozen=True)
class Sample:
    """A random parameter of the rest of the block; `distribution` is uniform, normal or exponential."""

    name: str
    distribution: str
    arguments: tuple[Expression, ...]
    place: Place


Statement: TypeAlias = "Execute | Call | Repeat | Beside | Branch | Chance | Switch | Let | Sample | Block"


@dataclass(frozen=True)
class Block:
    """Statements, one after the other."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Data:
    """A named array: `Array(count, size)` holds count times size bytes."""

    name: str
    kind: str
    arguments: tuple[Expression, ...]
    place: Place


@dataclass(frozen=True)
class Kernel:
    """A named piece of control flow."""

    name: str
    formals: tuple[str, ...]
    body: Block
    place: Place


@dataclass(frozen=True)
class Application:
    """An application model; its first kernel is `main`."""

    name: str
    parameters: tuple[Parameter, ...]
    data: tuple[Data, ...]
    kernels: dict[str, Kernel]
    place: Place


@dataclass(frozen=True)
class Modifier:
    """What a trait makes of a resource's time, an expression of `base`."""

    name: str
    value: Expression
    place: Place


@dataclass(frozen=True)
class Provided:
    """A resource that a component has: seconds, as an expression of the amount, by `formal`."""

    name: str
    formal: str
    seconds: Expression
    modifiers: dict[str, Modifier]
    place: Place


@dataclass(frozen=True)
class Child:
    """So many components of a name inside another."""

    kind: str
    name: str
    count: Expression
    place: Place


@dataclass(frozen=True)
class Component:
    """A machine, node, socket, core, memory, cache, interconnect or link. Power in watts."""

    kind: str
    name: str
    children: tuple[Child, ...]
    properties: dict[str, Expression]
    provided: dict[str, Provided]
    conflicts: tuple[frozenset[str], ...]
    static_power: Expression | None
    dynamic_power: Expression | None
    parameters: tuple[Parameter, ...]
    place: Place


@dataclass(frozen=True)
class Source:
    """Everything that a file and its includes say."""

    parameters: tuple[Parameter, ...] = ()
    applications: dict[str, Application] = field(default_factory=dict)
    components: dict[str, Component] = field(default_factory=dict)
