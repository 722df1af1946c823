# SPDX-License-Identifier: Apache-2.0
"""Formulas of how much of a resource an application uses, in the parameters left open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy

from checkpoint.errors import ModelInvalid
from probe.models import syntax as s
from probe.models.communication import communicates, sent_elements
from probe.models.expressions import PREFIXES, WORD, WORD_BYTES, WORD_SIZE, function_of, names_in
from probe.models.walk import MOST_CALLS

Known = Mapping[str, Any]

_RELATIONS = {"==": sympy.Eq, "!=": sympy.Ne, "<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge}
_FUNCTIONS = {
    "abs": sympy.Abs, "ceil": sympy.ceiling, "exp": sympy.exp, "floor": sympy.floor, "log": sympy.log,
    "log2": lambda x: sympy.log(x, 2), "log10": lambda x: sympy.log(x, 10), "max": sympy.Max, "min": sympy.Min,
    "sqrt": sympy.sqrt,
}  # fmt: skip


def total(application: s.Application, outside: Sequence[s.Parameter], resource: str, values: Mapping[str, float],
          open_: Sequence[str]) -> sympy.Expr:  # fmt: skip
    """Amount of a resource over the whole run, with the parameters `open_` as symbols (positive).

    Samples count by their mean. Raises ModelInvalid: an unknown parameter, recursion, a resource never used.
    """
    parameters = {p.name: p for p in (*outside, *application.parameters)}
    unknown = set(open_) - set(parameters)
    if unknown:
        raise ModelInvalid(f"model {application.name} has no parameter {min(unknown)}: it has {', '.join(parameters)}")
    known: dict[str, Any] = {name: sympy.Symbol(name, positive=True) for name in open_}
    known |= {name: _exact(value) for name, value in values.items() if name not in open_}
    for name in parameters:
        _define(name, parameters, known, ())
    summing = _Summing(application, resource)
    found = summing.block(application.kernels["main"].body, known, ("main",))
    if not summing.seen:
        raise ModelInvalid(f"model {application.name} never uses the resource {resource}")
    return sympy.simplify(found)


def _exact(value: float) -> sympy.Expr:
    return sympy.nsimplify(value, rational=True)


def _define(name: str, parameters: Mapping[str, s.Parameter], known: dict[str, Any], above: tuple[str, ...]) -> Any:
    if name in known:
        return known[name]
    parameter = parameters[name]
    if name in above or parameter.value is None:
        raise ModelInvalid(f"{parameter.place}: {name} has no value: --set {name}=VALUE")
    for used in names_in(parameter.value) & set(parameters):
        _define(used, parameters, known, (*above, name))
    known[name] = formula(parameter.value, known)
    return known[name]


def formula(expression: s.Expression, known: Known) -> Any:
    """A sympy expression of an Aspen expression. Raises ModelInvalid for an unknown name or a division by zero."""
    if isinstance(expression, s.Number):
        return _exact(expression.value)
    if isinstance(expression, s.Name):
        return _named(expression, known)
    operator, place = expression.operator, expression.place
    parts = [formula(part, known) for part in expression.operands]
    if operator in _RELATIONS:
        return _RELATIONS[operator](*parts)
    if operator in ("and", "or", "not"):
        return {"and": sympy.And, "or": sympy.Or, "not": sympy.Not}[operator](*parts)
    if operator == "/" and parts[1] == 0:
        raise ModelInvalid(f"{place}: {parts[0]} is divided by zero")
    plain: dict[str, Callable[..., Any]] = {
        "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
        "^": lambda a, b: a**b, "neg": lambda a: -a,
    }  # fmt: skip
    if operator in plain:
        return plain[operator](*parts)
    least, most, _ = function_of(operator, place)
    if not least <= len(parts) <= most:
        raise ModelInvalid(f"{place}: {operator} has {len(parts)} arguments")
    return _FUNCTIONS[operator](*parts)


def _named(name: s.Name, known: Known) -> Any:
    if name.name in known:
        return known[name.name]
    if name.name in PREFIXES:
        return _exact(PREFIXES[name.name])
    if name.name == WORD:
        return known.get(WORD_SIZE, _exact(WORD_BYTES))
    raise ModelInvalid(f"{name.place}: {name.name} is not defined")


def _amount(use: s.Use, known: Known) -> Any:
    """Pieces of a use; of communication those that an inner rank sends, as prices count them."""
    amount = formula(use.amount, known)
    return sent_elements(use, amount) if communicates(use) else amount


class _Summing:
    """Sums one resource along the control flow."""

    def __init__(self, application: s.Application, resource: str) -> None:
        self._application, self._resource = application, resource
        self.seen = False

    def block(self, block: s.Block, known: Known, above: tuple[str, ...]) -> Any:
        own, found = dict(known), sympy.Integer(0)
        for statement in block.statements:
            if isinstance(statement, s.Let):
                own[statement.name] = formula(statement.value, own)
            elif isinstance(statement, s.Sample):
                values = [formula(argument, own) for argument in statement.arguments]
                uniform = statement.distribution == "uniform"
                own[statement.name] = sum(values) / 2 if uniform else values[0]
            else:
                found += self._statement(statement, own, above)
        return found

    def _statement(self, statement: s.Statement, known: Known, above: tuple[str, ...]) -> Any:
        if isinstance(statement, s.Execute):
            return self._executed(statement, known)
        if isinstance(statement, s.Call):
            return self._called(statement, known, above)
        if isinstance(statement, s.Repeat):
            return formula(statement.count, known) * self.block(statement.body, known, above)
        if isinstance(statement, s.Beside):
            return self.block(statement.body, known, above)
        if isinstance(statement, s.Branch):
            return self._either(formula(statement.condition, known), statement.then, statement.otherwise, known, above)
        if isinstance(statement, s.Chance):
            share = formula(statement.share, known)
            return share * self.block(statement.then, known, above) + (1 - share) * self.block(
                statement.otherwise, known, above
            )
        if isinstance(statement, s.Switch):
            value = formula(statement.value, known)
            cases = [(self.block(b, known, above), sympy.Eq(value, formula(v, known))) for v, b in statement.cases]
            return sympy.Piecewise(*cases, (self.block(statement.default, known, above), True))
        assert isinstance(statement, s.Block)
        return self.block(statement, known, above)

    def _either(self, holds: Any, then: s.Block, otherwise: s.Block, known: Known, above: tuple[str, ...]) -> Any:
        return sympy.Piecewise((self.block(then, known, above), holds), (self.block(otherwise, known, above), True))

    def _executed(self, block: s.Execute, known: Known) -> Any:
        mine = [use for use in block.uses if use.resource == self._resource]
        self.seen |= bool(mine)
        one: Any = sympy.Integer(1)
        amounts = [_amount(use, known) * (one if use.size is None else formula(use.size, known)) for use in mine]
        instances = one if block.instances is None else formula(block.instances, known)
        return instances * reduce(lambda a, b: a + b, amounts, sympy.Integer(0))

    def _called(self, call: s.Call, known: Known, above: tuple[str, ...]) -> Any:
        kernel = self._application.kernels.get(call.kernel)
        if kernel is None:
            raise ModelInvalid(f"{call.place}: there is no kernel {call.kernel}")
        if call.kernel in above or len(above) > MOST_CALLS:
            raise ModelInvalid(f"{call.place}: {' calls '.join([*above, call.kernel])}: recursion has no price")
        if len(kernel.formals) != len(call.arguments):
            raise ModelInvalid(f"{call.place}: {call.kernel} takes {len(kernel.formals)} arguments")
        values = {n: formula(v, known) for n, v in zip(kernel.formals, call.arguments, strict=True)}
        return self.block(kernel.body, {**known, **values}, (*above, call.kernel))
