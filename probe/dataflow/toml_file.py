# SPDX-License-Identifier: Apache-2.0
"""Read tables of TOML that others bring: each value by its key, each mistake by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import tomli

from checkpoint.errors import ModelInvalid
from checkpoint.foreign_file import finite, read_foreign

_MOST_BYTES = 1 << 20
_SMALLEST = 1e-20
"""Of any seconds, bytes or degrees: what is computed of them stays far from the ends of numbers."""

MOST_COUNT: Final = 1 << 40

Read = TypeVar("Read")


def read_toml(path: Path, make: Callable[[Mapping[str, Any]], Read]) -> Read:
    """What `make` makes of the file's tables. Raises ModelInvalid with the file and what is wrong, StorageError."""
    try:
        return make(tomli.loads(read_foreign(path, _MOST_BYTES).decode("utf-8")))
    except (tomli.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelInvalid(f"{path}: not TOML ({error}); see docs/dataflow.md for a description") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ModelInvalid(f"{path}: {error}; see docs/dataflow.md") from error


def refuse_unknown(table: Mapping[str, Any], keys: Collection[str], where: str) -> None:
    """ValueError for a key that means nothing here."""
    if unknown := sorted(set(table) - set(keys)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(keys)}")


def table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table within the file. ValueError where it is missing."""
    found = table.get(key)
    if not isinstance(found, dict):
        raise ValueError(f"there is no table [{key}]")
    return found


def count(table: Mapping[str, Any], key: str, default: int | None = None, most: int = MOST_COUNT) -> int:
    """A whole number above 0. ValueError otherwise, and where it is missing without a default."""
    if key not in table and default is not None:
        return default
    value = _given(table, key)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{key} = {str(value)[:40]} is no whole number from 1 to {most}")
    return value


def number(table: Mapping[str, Any], key: str, default: float | None = None, *, least: float = 0.0) -> float:
    """A number not below `least`. ValueError otherwise, and where it is missing without a default."""
    if key not in table and default is not None:
        return default
    value = _bounded(_given(table, key), key)
    if value < least:
        raise ValueError(f"{key} = {value:g} is below {least:g}")
    return value


def positive(table: Mapping[str, Any], key: str) -> float:
    """A number above 0. ValueError otherwise."""
    value = _bounded(_given(table, key), key)
    if value <= 0:
        raise ValueError(f"{key} = {value:g} must be above 0")
    return value


def text(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text. ValueError otherwise, and where it is missing without a default."""
    if key not in table and default is not None:
        return default
    value = _given(table, key)
    if not isinstance(value, str) or "\0" in value or len(value) > 4096:
        raise ValueError(f"{key} = {str(value)[:40]} is no text")
    return value


def pair(table: Mapping[str, Any], key: str) -> tuple[float, float]:
    """Two numbers. ValueError otherwise."""
    value = _given(table, key)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{key} = {str(value)[:40]} is no list of two numbers")
    return _bounded(value[0], key), _bounded(value[1], key)


def counts(table: Mapping[str, Any], key: str) -> tuple[int, int]:
    """Two whole numbers above 0. ValueError otherwise."""
    first, second = pair(table, key)
    if min(first, second) < 1 or first != int(first) or second != int(second) or max(first, second) > 1 << 24:
        raise ValueError(f"{key} = [{first:g}, {second:g}] are no two whole numbers above 0")
    return int(first), int(second)


def _bounded(value: Any, key: str) -> float:
    found = finite(value)
    if found and not _SMALLEST <= abs(found) <= 1 / _SMALLEST:
        raise ValueError(f"{key} = {found:g} is no quantity of this world")
    return found


def _given(table: Mapping[str, Any], key: str) -> Any:
    if key not in table:
        raise ValueError(f"{key} is missing")
    return table[key]
