# SPDX-License-Identifier: Apache-2.0
"""Read data classes from JSON that comes from outside, each field by a rule of its own.

A field says its rule where it is declared: `cores: int = field(metadata=COUNT)`. Rules are made of rules:
`many(SECONDS)`, `optional(SHARE)`, `record(Times)`. A class whose fields must fit each other has a method `flaw`: it
returns what is wrong, "" if nothing is. Keys that no field has are ignored: later versions say more. Standard library
alone.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    # Python 3.8 cannot evaluate these.
    Check = Callable[[Any, str], Any]
    """(value, its place) -> the value as the data class has it. Raises Unsound."""
    Rule = Mapping[str, Check]
    """A field's metadata: the check that its value has to pass."""

T = TypeVar("T")
_RULE = "rule"

MOST_COUNT = (1 << 53) - 1
"""The largest integer that every JSON reader keeps exactly."""

MOST_NUMBER = (1 << 31) - 1
MOST_SECONDS = 1e9
"""Some thirty years."""

MOST_AMOUNT = 1e18
LEAST = 1e-18
"""Smaller numbers come from no clock and no counter, and would be 0 or infinite in quotients and squares."""

MOST_PATH = 4096
MOST_TEXT = 1 << 17
"""Characters of the longest argument that Linux takes, and of every other text."""

MOST_ITEMS = 1 << 20


class Unsound(ValueError):
    """A value that no record of ours has: its place, what it is and what it should be."""


def _refuse(value: Any, place: str, wanted: str) -> Any:
    shown = {list: "a list", dict: "an object", type(None): "null"}.get(type(value)) or reprlib.repr(value)
    raise Unsound(f"{place} is {shown}, not {wanted}")


def whole(least: int, most: int = MOST_COUNT) -> Rule:
    """An integer; truth values are none."""

    def check(value: Any, place: str) -> Any:
        sound = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return value if sound else _refuse(value, place, f"a whole number from {least} to {most}")

    return {_RULE: check}


def number(least: float, most: float, smallest: float = 0.0) -> Rule:
    """A finite integer or decimal, as it is; nearer to 0 than `smallest` only 0 itself."""

    def check(value: Any, place: str) -> Any:
        # A comparison with NaN is never true.
        sound = isinstance(value, (int, float)) and not isinstance(value, bool)
        sound = sound and least <= value <= most and not 0 < abs(value) < smallest
        return value if sound else _refuse(value, place, f"a number from {least:g} to {most:g}")

    return {_RULE: check}


def text(most: int = MOST_TEXT, form: str = r"[^\0]*", wanted: str = "text without NUL") -> Rule:
    """At most `most` characters that `form`, a regular expression, fits as a whole."""
    fits = re.compile(form, re.DOTALL).fullmatch

    def check(value: Any, place: str) -> Any:
        sound = isinstance(value, str) and len(value) <= most and fits(value)
        return value if sound else _refuse(value, place, f"{wanted}, of at most {most} characters")

    return {_RULE: check}


def one_of(*words: str) -> Rule:
    """One of these words."""
    return {_RULE: lambda value, place: value if value in words else _refuse(value, place, " or ".join(words))}


def flag(value: Any, place: str) -> bool:
    return value if isinstance(value, bool) else _refuse(value, place, "true or false")


def optional(rule: Rule) -> Rule:
    """null, or what `rule` lets through."""
    return {_RULE: lambda value, place: None if value is None else rule[_RULE](value, place)}


def many(rule: Rule, least: int = 0, most: int = MOST_ITEMS) -> Rule:
    """A list, as a tuple."""

    def check(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or not least <= len(value) <= most:
            _refuse(value, place, f"a list of {least} to {most} items")
        return tuple(rule[_RULE](item, f"{place}[{number}]") for number, item in enumerate(value))

    return {_RULE: check}


def by_name(names: Rule, values: Rule, most: int = MOST_ITEMS) -> Rule:
    """An object of any keys, as a dict."""

    def check(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            _refuse(value, place, f"an object of at most {most} keys")
        return {
            names[_RULE](name, f"a key of {place}"): values[_RULE](one, f"{place}[{reprlib.repr(name)}]")
            for name, one in value.items()
        }

    return {_RULE: check}


def record(kind: type[Any]) -> Rule:
    """An object, as that data class."""
    return {_RULE: lambda value, place: read(kind, value, place)}


def as_defaults(kind: type[Any]) -> Rule:
    """An object of options, as that data class: each of the type that its default has."""

    def check(value: Any, place: str) -> Any:
        options = {one.name: one for one in dataclasses.fields(kind)}
        if not isinstance(value, Mapping) or not value.keys() <= options.keys():
            _refuse(value, place, f"options out of {', '.join(options)}")
        for name, given in value.items():
            wanted = type(options[name].default)
            if type(given) is not wanted and (wanted is not float or type(given) is not int):
                _refuse(given, f"{place}.{name}", f"of type {wanted.__name__}")
        return kind(**value)

    return {_RULE: check}


def read(kind: type[T], value: Any, place: str = "") -> T:
    """The object `value` of JSON as data class `kind`; `place` names it in errors. Raises Unsound."""
    made = kind(**checked(kind, value, place))
    flaw = getattr(made, "flaw", str)()
    if flaw:
        raise Unsound(f"{place}: {flaw}" if place else flaw)
    return made


def checked(kind: type[Any], value: Any, place: str = "") -> dict[str, Any]:
    """Those fields of `kind` that have a rule, by name; absent ones that have a default are left out."""
    if not isinstance(value, Mapping):
        _refuse(value, place or "it", "an object")
    found = {}
    for one in dataclasses.fields(kind):
        if _RULE not in one.metadata:
            continue
        at = f"{place}.{one.name}" if place else one.name
        if one.name in value:
            found[one.name] = one.metadata[_RULE](value[one.name], at)
        elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise Unsound(f"{at} is missing")
    return found


FLAG: Rule = {_RULE: flag}
COUNT = whole(0)
NUMBER = whole(0, MOST_NUMBER)
"""Of a phase, an interval, a stratum, a process."""

SEED = whole(-(1 << 128), 1 << 128)

ADDRESS = whole(0, (1 << 64) - 1)
SECONDS = number(0.0, MOST_SECONDS, LEAST)
TIME = number(LEAST, MOST_SECONDS)
"""Seconds of something that cannot have taken none: others are divided by it."""

AMOUNT = number(0.0, MOST_AMOUNT, LEAST)
LENGTH = number(LEAST, MOST_AMOUNT)
SHARE = number(0.0, 1.0 + 1e-9)
"""Of sums that were rounded."""

PART = number(0.0, 1.0 + 1e-9, LEAST)
"""A share that others are divided by."""

SPREAD = number(0.0, MOST_SECONDS)
"""Of logarithms, or a relative error without its sign."""

DEVIATION = number(-MOST_SECONDS, MOST_SECONDS)
"""A relative error."""

WORD = text(200)
TEXT = text()
PATH = text(MOST_PATH, r"/[^\0]*", "an absolute path without NUL")
NAME_BELOW = text(MOST_PATH, r"(?!/)(?!(.*/)?\.\.(/|\Z))[^\0]+", "a path that stays below its folder")
SHA256 = text(64, r"[0-9a-f]{64}", "a SHA-256")
MODE = whole(0, 0o7777)
