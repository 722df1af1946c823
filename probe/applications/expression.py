# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of work expressions: parsed by Python's grammar, walked, and never run as code."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from checkpoint.errors import ProbeError

_MOST_CHARACTERS = 2000
_MOST_NODES = 500
_LARGEST = 1e300
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: float(a // b),
    ast.Mod: lambda a, b: a % b,
    # Of decimals, never of integers: those of 9**9**9 fill the memory before anybody sees them.
    ast.Pow: lambda a, b: math.pow(a, b),
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "log2": math.log2, "log": math.log, "sqrt": math.sqrt, "ceil": math.ceil, "floor": math.floor, "min": min,
    "max": max,
}  # fmt: skip
FUNCTIONS = tuple(sorted(_FUNCTIONS))
"""Names of the functions that an expression may call."""


@dataclass(frozen=True)
class Expression:
    """An arithmetic expression over parameters. `names`: those it needs."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr

    def value(self, given: Mapping[str, float]) -> float:
        """The value for these parameters. Raises ProbeError for one that is missing, or where there is no number."""
        lacking = [name for name in self.names if name not in given]
        if lacking:
            raise ProbeError(f"{self.text!r} needs {', '.join(lacking)}; give values with --set, or rules to read them")
        try:
            found = _walk(self._tree, given)
        except (ArithmeticError, ValueError) as error:
            raise ProbeError(f"{self.text!r} has no value for {_shown(given, self.names)}: {error}") from error
        if not -_LARGEST < found < _LARGEST:
            raise ProbeError(f"{self.text!r} has no value for {_shown(given, self.names)}: it is not finite")
        return found

    def positive(self, given: Mapping[str, float]) -> float:
        """As `value`; ProbeError also for zero and below, of which there is no work to divide by."""
        found = self.value(given)
        if found <= 0:
            raise ProbeError(f"{self.text!r} is {found:g} for {_shown(given, self.names)}; work must be above 0")
        return found


def parse_expression(text: str) -> Expression:
    """Parse arithmetic: numbers, names, + - * / // % **, signs, and FUNCTIONS. Raises ProbeError for anything else."""
    if len(text) > _MOST_CHARACTERS:
        raise ProbeError(f"{text[:40]!r}...: longer than {_MOST_CHARACTERS} characters; no expression needs that")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProbeError(f"{text!r} is no arithmetic expression; write one such as 'nx*ny*(stop-start+1)'") from error
    nodes = list(ast.walk(tree))
    if len(nodes) > _MOST_NODES:
        raise ProbeError(f"{text[:40]!r}...: more than {_MOST_NODES} parts; no expression needs that")
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        _check(node, text)
    names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called}
    return Expression(text, tuple(sorted(names)), tree)


def _check(node: ast.AST, text: str) -> None:
    allowed: bool
    if isinstance(node, ast.Constant):
        allowed = isinstance(node.value, (int, float)) and type(node.value) is not bool and abs(node.value) < _LARGEST
    elif isinstance(node, ast.Call):
        allowed = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        allowed = allowed and bool(node.args) and not any(isinstance(a, ast.Starred) for a in node.args)
    else:
        kinds = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.UAdd, ast.USub, *_OPERATORS)
        allowed = isinstance(node, kinds)
    if not allowed:
        what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        raise ProbeError(
            f"{text!r}: {what[:60]!r} is no arithmetic; there are numbers, names, + - * / // % **, and "
            f"{', '.join(FUNCTIONS)}"
        )


def _walk(node: ast.expr, given: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, (int, float))
        return float(node.value)
    if isinstance(node, ast.Name):
        return float(given[node.id])
    if isinstance(node, ast.UnaryOp):
        inner = _walk(node.operand, given)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        return float(_OPERATORS[type(node.op)](_walk(node.left, given), _walk(node.right, given)))
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    try:
        return float(_FUNCTIONS[node.func.id](*(_walk(argument, given) for argument in node.args)))
    except TypeError as error:
        raise ValueError(f"{node.func.id} takes another number of values") from error


def _shown(given: Mapping[str, float], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} = {given[name]:g}" for name in names) or "no parameters"
