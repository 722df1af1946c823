# SPDX-License-Identifier: Apache-2.0
"""Reader of Aspen files: text to `syntax`, includes followed, every complaint with file and line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from checkpoint.errors import ModelInvalid, StorageError
from probe.models import syntax as s

LARGEST_FILE = 4_000_000
"""Bytes. A model of a real application has some hundred lines."""

MOST_FILES = 100
MOST_NESTED = 100
"""Brackets and blocks inside each other: deeper ones are an attack, or a mistake."""

_SHOWN_EXPECTED = 6


def read_model(path: Path) -> s.Source:
    """Everything in the file and what it includes. Included files lie in its folder or below.

    Raises ModelInvalid (what, where, what was expected) and StorageError.
    """
    root = path.resolve().parent
    seen: dict[Path, s.Source] = {}
    return _read(path, root, seen)


def _read(path: Path, root: Path, seen: dict[Path, s.Source]) -> s.Source:
    if len(seen) > MOST_FILES:
        raise ModelInvalid(f"{path}: more than {MOST_FILES} files include each other")
    seen[path.resolve()] = s.Source()
    tree = _tree(_text(path), str(path))
    own = _Builder(str(path))
    parameters: list[s.Parameter] = []
    applications: dict[str, s.Application] = {}
    components: dict[str, s.Component] = {}
    for item in tree.children:
        assert isinstance(item, Tree)
        if item.data == "include":
            other = _included(own, item, path, root, seen)
            parameters += other.parameters
            _add_all(applications, other.applications)
            _add_all(components, other.components)
        elif item.data == "param":
            parameters.append(own.parameter(item))
        elif item.data == "application":
            application = own.application(item)
            _add_all(applications, {application.name: application})
        else:
            component = own.component(item)
            _add_all(components, {component.name: component})
    return s.Source(tuple(parameters), applications, components)


def _add_all(known: dict[str, Any], new: dict[str, Any]) -> None:
    for name, value in new.items():
        if name in known and known[name] is not value:
            raise ModelInvalid(f"{value.place}: {name} is already defined at {known[name].place}")
        known[name] = value


def _included(own: _Builder, item: Tree[Token], path: Path, root: Path, seen: dict[Path, s.Source]) -> s.Source:
    named = str(item.children[0])[1:-1]
    place = own.place(item)
    target = (path.resolve().parent / named).resolve()
    if not target.is_relative_to(root):
        raise ModelInvalid(f"{place}: includes {named}, which is outside the model's folder {root}")
    if target in seen:
        return seen[target]
    if not target.is_file():
        raise ModelInvalid(f"{place}: includes {named}, which is no file")
    seen[target] = _read(path.parent / named, root, seen)
    return seen[target]


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise StorageError(f"{path}: no such file")
        if path.stat().st_size > LARGEST_FILE:
            raise ModelInvalid(f"{path}: larger than {LARGEST_FILE} bytes: not a model")
        return path.read_text()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"{path}: not text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error


@cache
def _parser() -> Lark:
    return Lark(
        (files("probe.models") / "aspen.lark").read_text(), parser="lalr", propagate_positions=True,
        maybe_placeholders=True,
    )  # fmt: skip


def _tree(text: str, file: str) -> Tree[Token]:
    _refuse_depth(text, file)
    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        raise ModelInvalid(f"{file}:{max(error.line, 1)}: {_found(error, text)}") from error


def _refuse_depth(text: str, file: str) -> None:
    """Bound what recursion walks later."""
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        for character in line:
            depth += (character in "({[") - (character in ")}]")
            if depth > MOST_NESTED:
                raise ModelInvalid(f"{file}:{number}: more than {MOST_NESTED} brackets inside each other")


def _found(error: UnexpectedInput, text: str) -> str:
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        found, wanted = "the file ends here", getattr(error, "expected", ())
    elif isinstance(error, UnexpectedCharacters):
        found, wanted = f"'{error.char}' cannot stand here", error.allowed or ()
    else:
        assert isinstance(error, UnexpectedToken)
        found, wanted = f"'{error.token}' cannot stand here", error.accepts or error.expected
    named = sorted({_readable(name) for name in wanted})
    if not named:
        return found
    more = f" or {len(named) - _SHOWN_EXPECTED} others" if len(named) > _SHOWN_EXPECTED else ""
    return f"{found}; expected {', '.join(named[:_SHOWN_EXPECTED])}{more}"


def _readable(terminal: str) -> str:
    own = {"NAME": "a name", "NUMBER": "a number", "STRING": "a text in quotes", "KIND": "a component",
           "DIRECTION": "from or to", "RELATION": "a comparison", "$END": "the end"}  # fmt: skip
    if terminal in own:
        return own[terminal]
    for known in _parser().terminals:
        if known.name == terminal:
            return f"'{known.pattern.value}'"
    return terminal


class _Builder:
    """From the parser's trees to `syntax`, for one file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def place(self, tree: Tree[Token] | Token) -> s.Place:
        line = tree.line if isinstance(tree, Token) else getattr(tree.meta, "line", 0)
        return s.Place(self._file, line or 0)

    # -- expressions

    def expression(self, tree: Any) -> s.Expression:
        kind, parts = tree.data, tree.children
        place = self.place(tree)
        if kind == "number":
            return s.Number(float(parts[0]))
        if kind == "name":
            return s.Name(str(parts[0]), place)
        if kind == "function":
            return s.Operation(str(parts[0]), self.expressions(parts[1:]), place)
        if kind == "comparison":
            return s.Operation(str(parts[1]), (self.expression(parts[0]), self.expression(parts[2])), place)
        return s.Operation(_OPERATORS[kind], self.expressions(parts), place)

    def expressions(self, trees: Any) -> tuple[s.Expression, ...]:
        return tuple(self.expression(tree) for tree in trees if tree is not None)

    def optional(self, tree: Any) -> s.Expression | None:
        return None if tree is None else self.expression(tree)

    def parameter(self, tree: Tree[Token]) -> s.Parameter:
        name, *rest = tree.children
        values = [self.expression(part) for part in rest if part is not None]
        value = values[0] if len(values) in (1, 3) else None
        low, high = (values[-2], values[-1]) if len(values) >= 2 else (None, None)
        return s.Parameter(str(name), value, low, high, self.place(tree))

    # -- applications

    def application(self, tree: Tree[Token]) -> s.Application:
        name, *items = tree.children
        kernels: dict[str, s.Kernel] = {}
        parameters, data = [], []
        for item in items:
            assert isinstance(item, Tree)
            if item.data == "param":
                parameters.append(self.parameter(item))
            elif item.data == "data":
                data.append(self.data(item))
            elif item.data == "kernel":
                kernel = self.kernel(item)
                _add_all(kernels, {kernel.name: kernel})
            else:
                raise ModelInvalid(f"{self.place(item)}: includes stand outside of a model")
        if "main" not in kernels:
            raise ModelInvalid(f"{self.place(tree)}: model {name} has no kernel main")
        return s.Application(str(name), tuple(parameters), tuple(data), kernels, self.place(tree))

    def data(self, tree: Tree[Token]) -> s.Data:
        name, kind, *arguments = tree.children
        return s.Data(str(name), str(kind), self.expressions(arguments), self.place(tree))

    def kernel(self, tree: Tree[Token]) -> s.Kernel:
        name, *formals, body = tree.children
        names = tuple(str(f.children[0]) for f in formals if isinstance(f, Tree) and f.data == "formal_param")
        return s.Kernel(str(name), names, self.block(body), self.place(tree))

    def block(self, tree: Any) -> s.Block:
        if tree is None:
            return s.Block(())
        if tree.data == "branch":
            return s.Block((self.statement(tree),))
        return s.Block(tuple(self.statement(item) for item in tree.children))

    def statement(self, tree: Any) -> s.Statement:
        return getattr(self, f"_{tree.data}")(tree.children, self.place(tree))  # type: ignore[no-any-return]

    def _execute(self, parts: Any, place: s.Place) -> s.Statement:
        instances, label, *uses = parts
        text = "" if label is None else str(label)[1:-1]
        return s.Execute(text, self.optional(instances), tuple(self.use(use) for use in uses), place)

    def use(self, tree: Tree[Token]) -> s.Use:
        name, amount, size, data, traits = tree.children
        return s.Use(
            str(name),
            self.expression(amount),
            None if size is None else self.expression(size.children[0]),  # type: ignore[union-attr]
            "" if data is None else str(data.children[1]),  # type: ignore[union-attr]
            () if traits is None else tuple(self.trait(t) for t in traits.children),  # type: ignore[union-attr]
            self.place(tree),
        )

    def trait(self, tree: Any) -> s.Trait:
        name, *arguments = tree.children
        return s.Trait(str(name), self.expressions(arguments), self.place(tree))

    def _call(self, parts: Any, place: s.Place) -> s.Statement:
        return s.Call(str(parts[0]), self.expressions(parts[1:]), place)

    _bare_call = _call

    def _seq(self, parts: Any, place: s.Place) -> s.Statement:
        return self.block(parts[0])

    def _par(self, parts: Any, place: s.Place) -> s.Statement:
        return s.Beside(self.block(parts[0]), place)

    def _repeat(self, parts: Any, place: s.Place, *, parallel: bool) -> s.Statement:
        return s.Repeat(self.expression(parts[0]), self.block(parts[-1]), parallel, place)

    def _iterate(self, parts: Any, place: s.Place) -> s.Statement:
        return self._repeat(parts, place, parallel=False)

    def _map(self, parts: Any, place: s.Place) -> s.Statement:
        return self._repeat(parts, place, parallel=True)

    def _either(self, parts: Any, place: s.Place, make: Any) -> s.Statement:
        condition, then, otherwise = parts
        made: s.Statement = make(self.expression(condition), self.block(then), self.block(otherwise), place)
        return made

    def _branch(self, parts: Any, place: s.Place) -> s.Statement:
        return self._either(parts, place, s.Branch)

    def _probability(self, parts: Any, place: s.Place) -> s.Statement:
        return self._either(parts, place, s.Chance)

    def _switch(self, parts: Any, place: s.Place) -> s.Statement:
        value, *cases, default = parts
        found = tuple((self.expression(case.children[0]), self.block(case.children[1])) for case in cases)
        return s.Switch(self.expression(value), found, self.block(default), place)

    def _sample(self, parts: Any, place: s.Place) -> s.Statement:
        return s.Sample(str(parts[0]), str(parts[1]), self.expressions(parts[2:]), place)

    def _local(self, parts: Any, place: s.Place) -> s.Statement:
        return s.Let(str(parts[0]), self.expression(parts[1]), place)

    # -- machines

    def component(self, tree: Tree[Token]) -> s.Component:
        kind, name, *parts = tree.children
        of = partial(_of_kind, parts)
        powers = {str(p.data): self.expression(p.children[-1]) for p in of("static_power", "dynamic_power")}
        provided: dict[str, s.Provided] = {}
        for part in of("provided"):
            resource = self.provided(part)
            _add_all(provided, {resource.name: resource})
        return s.Component(
            str(kind),
            str(name),
            tuple(self.child(part) for part in of("child")),
            {str(part.children[0]): self.expression(part.children[1]) for part in of("property")},
            provided,
            tuple(frozenset(map(str, part.children)) for part in of("conflict")),
            powers.get("static_power"),
            powers.get("dynamic_power"),
            tuple(self.parameter(part) for part in of("param")),
            self.place(tree),
        )

    def child(self, tree: Any) -> s.Child:
        kind, count, name = tree.children
        return s.Child(str(kind), str(name), s.Number(1.0) if count is None else self.expression(count),
                       self.place(tree))  # fmt: skip

    def provided(self, tree: Any) -> s.Provided:
        name, formal, seconds, *modifiers = tree.children
        named = {
            str(m.children[0]): s.Modifier(str(m.children[0]), self.expression(m.children[1]), self.place(m))
            for m in modifiers
            if m is not None
        }
        return s.Provided(str(name), str(formal), self.expression(seconds), named, self.place(tree))


_OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "raised": "^", "negative": "neg",
    "condition": "or", "conjunction": "and", "negated": "not",
}  # fmt: skip


def _of_kind(parts: list[Any], *kinds: str) -> Iterator[Any]:
    return (part for part in parts if part.data in kinds)
