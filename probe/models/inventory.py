# SPDX-License-Identifier: Apache-2.0
"""Lists what an application model uses: its blocks of resources, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator

from probe.models import syntax as s


def executions(application: s.Application) -> Iterator[s.Execute]:
    """Every block of resources of every kernel, in the order of the text."""
    for kernel in application.kernels.values():
        yield from _inside(kernel.body)


def uses(application: s.Application) -> dict[str, list[str]]:
    """Traits used with each resource, by resource, both in order of appearance."""
    found: dict[str, list[str]] = {}
    for block in executions(application):
        for use in block.uses:
            traits = found.setdefault(use.resource, [])
            traits += [name for name in dict.fromkeys(trait.name for trait in use.traits) if name not in traits]
    return found


def _inside(block: s.Block) -> Iterator[s.Execute]:
    for statement in block.statements:
        if isinstance(statement, s.Execute):
            yield statement
        for inner in _blocks(statement):
            yield from _inside(inner)


def _blocks(statement: s.Statement) -> list[s.Block]:
    if isinstance(statement, s.Block):
        return [statement]
    if isinstance(statement, (s.Repeat, s.Beside)):
        return [statement.body]
    if isinstance(statement, (s.Branch, s.Chance)):
        return [statement.then, statement.otherwise]
    if isinstance(statement, s.Switch):
        return [*(body for _, body in statement.cases), statement.default]
    return []
