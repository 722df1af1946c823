# SPDX-License-Identifier: Apache-2.0
"""Composition of kernels: one after the other, repeated, side by side, as replicas, as a farm inside a pilot job."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from checkpoint.errors import ProbeError

SEQUENCE, LOOP, PARALLEL, REPLICA, FARM = "seq", "loop", "par", "replica", "farm"
KINDS: Final = (SEQUENCE, LOOP, PARALLEL, REPLICA, FARM)
_COUNTED = (LOOP, REPLICA, FARM)
_MOST_PARTS = 200


@dataclass(frozen=True)
class Composed:
    """A kernel by its name (`kind` empty), or parts put together. `count`: repetitions, a number or a parameter.

    seq, loop: one part after the other, `count` times. par: side by side, each on its own cores. replica: `count`
    independent copies, each on its own cores. farm: `count` copies by turns inside one allocation (a pilot job).
    """

    kind: str
    name: str = ""
    parts: tuple[Composed, ...] = ()
    count: int | str = 1

    def kernels(self) -> Iterator[str]:
        """Names of the kernels, in the order of the text."""
        if not self.kind:
            yield self.name
        for part in self.parts:
            yield from part.kernels()

    def parameters(self) -> Iterator[str]:
        """Names of the parameters that counts are."""
        if isinstance(self.count, str):
            yield self.count
        for part in self.parts:
            yield from part.parameters()

    def times(self, given: Mapping[str, float]) -> int:
        """`count` as a number. Raises ProbeError for a parameter that is missing or no whole number above 0."""
        found = given.get(self.count, 0.0) if isinstance(self.count, str) else float(self.count)
        if found < 1 or found != int(found):
            raise ProbeError(f"{self.kind}({self.count}, ...): {found:g} is no number of times; give one with --set")
        return int(found)

    def __str__(self) -> str:
        if not self.kind:
            return self.name
        count = [] if self.count == 1 else [str(self.count)]
        return f"{self.kind}({', '.join([*count, *map(str, self.parts)])})"


def parse_composition(text: str, kernels: Collection[str]) -> Composed:
    """Parse such as `loop(chease, ets, par(gem, imp4dv))`. Raises ProbeError for what is none, or unknown kernels."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if sum(1 for _ in ast.walk(tree)) > 4 * _MOST_PARTS:
            raise ProbeError(f"graph {text[:40]!r}...: more than {_MOST_PARTS} parts")
        found = _composed(tree, text, kernels)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProbeError(f"graph {text!r} cannot be read; write one such as 'loop(a, par(b, c))'") from error
    names = list(found.kernels())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ProbeError(f"graph {text!r} names {', '.join(twice)} twice; give each use a kernel of its own")
    return found


def _composed(node: ast.expr, text: str, kernels: Collection[str]) -> Composed:
    if isinstance(node, ast.Name):
        if node.id not in kernels:
            raise ProbeError(f"graph {text!r}: there is no kernel {node.id!r}; there are {', '.join(sorted(kernels))}")
        return Composed("", node.id)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS):
        raise ProbeError(f"graph {text!r}: {ast.unparse(node)[:60]!r} is neither a kernel nor {', '.join(KINDS)}(...)")
    kind, inner = node.func.id, list(node.args)
    if node.keywords or not inner:
        raise ProbeError(f"graph {text!r}: {kind} takes kernels, and nothing else")
    count: int | str = 1
    if kind in _COUNTED and (counted := _count(inner[0], kernels)) is not None:
        count = counted
        inner = inner[1:]
    elif kind in (REPLICA, FARM):
        raise ProbeError(f"graph {text!r}: {kind} needs a number first, such as {kind}(8, {ast.unparse(inner[0])})")
    if not inner or (kind in (REPLICA, FARM) and len(inner) != 1):
        raise ProbeError(f"graph {text!r}: {kind} takes {'one kernel' if kind in (REPLICA, FARM) else 'kernels'}")
    return Composed(kind, "", tuple(_composed(part, text, kernels) for part in inner), count)


def _count(node: ast.expr, kernels: Collection[str]) -> int | str | None:
    """A number of repetitions, or the parameter that is one; None for a part."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value < 1:
            raise ProbeError(f"{node.value} is no number of repetitions")
        return node.value
    if isinstance(node, ast.Name) and node.id not in kernels:
        return node.id
    return None
