# SPDX-License-Identifier: Apache-2.0
"""Values of Aspen expressions: as numbers, where parameters have values, and their parameters resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s

PREFIXES: Final = {
    "nano": 1e-9, "micro": 1e-6, "milli": 1e-3, "kilo": 1e3, "mega": 1e6, "giga": 1e9, "tera": 1e12, "peta": 1e15,
    "exa": 1e18,
}  # fmt: skip
"""Names that every model knows."""

WORD, WORD_SIZE, WORD_BYTES = "word", "wordsize", 4.0
"""The paper's listings use `word` without defining it: the parameter `wordsize` where there is one, else a float."""

LARGEST_POWER = 1000.0
"""Exponents beyond it are mistakes: no amount of anything is so large."""

FUNCTIONS: Final[dict[str, tuple[int, int, Callable[..., float]]]] = {
    "abs": (1, 1, abs), "ceil": (1, 1, math.ceil), "exp": (1, 1, math.exp), "floor": (1, 1, math.floor),
    "log": (1, 1, math.log), "log2": (1, 1, math.log2), "log10": (1, 1, math.log10), "max": (1, 16, max),
    "min": (1, 16, min), "sqrt": (1, 1, math.sqrt),
}  # fmt: skip
"""By name: least and most arguments, and the function."""

_RELATIONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip

Environment = Mapping[str, float]


def number(expression: s.Expression, known: Environment) -> float:
    """The expression's value. Raises ModelInvalid: an unknown name, a division by zero, no finite number."""
    if isinstance(expression, s.Number):
        return expression.value
    if isinstance(expression, s.Name):
        return _named(expression, known)
    place, operator = expression.place, expression.operator
    if operator in ("and", "or"):
        check = all if operator == "and" else any
        return float(check(number(part, known) != 0 for part in expression.operands))
    values = [number(part, known) for part in expression.operands]
    try:
        value = float(_applied(operator, values, place))
    except (OverflowError, ValueError) as error:
        raise ModelInvalid(f"{place}: {_written(operator, values)} has no value ({error})") from error
    if not math.isfinite(value):
        raise ModelInvalid(f"{place}: {_written(operator, values)} is no finite number")
    return value


def _named(name: s.Name, known: Environment) -> float:
    if name.name in known:
        return known[name.name]
    if name.name in PREFIXES:
        return PREFIXES[name.name]
    if name.name == WORD:
        return known.get(WORD_SIZE, WORD_BYTES)
    raise ModelInvalid(f"{name.place}: {name.name} is not defined")


def _applied(operator: str, values: Sequence[float], place: s.Place) -> float:
    if operator in _RELATIONS:
        return _RELATIONS[operator](values[0], values[1])
    if operator == "neg":
        return -values[0]
    if operator == "not":
        return values[0] == 0
    if operator in ("+", "-", "*"):
        a, b = values
        return a + b if operator == "+" else a - b if operator == "-" else a * b
    if operator == "/":
        if values[1] == 0:
            raise ModelInvalid(f"{place}: {values[0]:g} is divided by zero")
        return values[0] / values[1]
    if operator == "^":
        return _power(values[0], values[1], place)
    least, most, function = function_of(operator, place)
    if not least <= len(values) <= most:
        raise ModelInvalid(f"{place}: {operator} has {len(values)} arguments")
    return function(*values)


def function_of(name: str, place: s.Place) -> tuple[int, int, Callable[..., float]]:
    """Least and most arguments of a function, and the function. Raises ModelInvalid for an unknown one."""
    if name not in FUNCTIONS:
        raise ModelInvalid(f"{place}: there is no function {name}; there are {', '.join(sorted(FUNCTIONS))}")
    return FUNCTIONS[name]


def _power(base: float, exponent: float, place: s.Place) -> float:
    if abs(exponent) > LARGEST_POWER or (base == 0 and exponent < 0) or (base < 0 and exponent != int(exponent)):
        raise ModelInvalid(f"{place}: {base:g}^{exponent:g} has no value")
    return float(base**exponent)


def _written(operator: str, values: Sequence[float]) -> str:
    return f"{operator}({', '.join(f'{value:g}' for value in values)})"


def natural(expression: s.Expression, known: Environment, what: str, place: s.Place) -> int:
    """The value of a count. Raises ModelInvalid where it is negative or no whole number."""
    value = number(expression, known)
    if value < 0 or value != int(value):
        raise ModelInvalid(f"{place}: {what} is {value:g}: a count is a whole number, 0 or more")
    return int(value)


@dataclass(frozen=True)
class Settings:
    """Values given from outside, which take the place of a model's own."""

    values: Mapping[str, float]

    def resolve(self, parameters: Sequence[s.Parameter], known: Environment) -> dict[str, float]:
        """All parameters' values, in whatever order they refer to each other, and `known`.

        Raises ModelInvalid: without a value, outside of its range, defined by itself.
        """
        by_name = {parameter.name: parameter for parameter in parameters}
        found: dict[str, float] = dict(known)
        done: set[str] = set()
        for name in by_name:
            self._find(name, by_name, found, done, ())
        return found

    def _find(
        self, name: str, by_name: Mapping[str, s.Parameter], found: dict[str, float], done: set[str],
        above: tuple[str, ...],
    ) -> None:  # fmt: skip
        parameter = by_name[name]
        if name in above:
            raise ModelInvalid(f"{parameter.place}: {' needs '.join([*above, name])}")
        if name in done:
            return
        given = name in self.values
        for expression in (None if given else parameter.value, parameter.low, parameter.high):
            for used in names_in(expression):
                if used in by_name and used != name:
                    self._find(used, by_name, found, done, (*above, name))
                elif used == name and expression is parameter.value:
                    raise ModelInvalid(f"{parameter.place}: {name} needs {name}")
        if given:
            found[name] = self.values[name]
        elif parameter.value is not None:
            found[name] = number(parameter.value, found)
        else:
            raise ModelInvalid(f"{parameter.place}: {name} has no value: --set {name}=VALUE")
        done.add(name)
        _refuse_outside(parameter, found)


def _refuse_outside(parameter: s.Parameter, found: Environment) -> None:
    if parameter.low is None or parameter.high is None:
        return
    low, high = number(parameter.low, found), number(parameter.high, found)
    value = found[parameter.name]
    if not low <= value <= high:
        raise ModelInvalid(f"{parameter.place}: {parameter.name} = {value:g} is outside of {low:g}..{high:g}")


def names_in(expression: s.Expression | None) -> set[str]:
    """Names of the parameters that an expression uses."""
    if isinstance(expression, s.Name):
        return {expression.name}
    if isinstance(expression, s.Operation):
        return {name for part in expression.operands for name in names_in(part)}
    return set()
