# SPDX-License-Identifier: Apache-2.0
"""Check values of a stored state. ValueError, or TypeError, where they are not what belongs there."""

from __future__ import annotations

from typing import Any

_LARGEST = 1 << 64


def checked_number(value: Any) -> int:
    """A number from 0 to 2^64 - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ValueError(f"{value!r} is no number")
    return value


def checked_optional(value: Any) -> int | None:
    """Such a number, or None."""
    return None if value is None else checked_number(value)


def checked_numbers(values: Any, count: int | None = None) -> tuple[int, ...]:
    """A list of numbers; of `count` numbers, if that is given."""
    if count is not None and len(values) != count:
        raise ValueError(f"{len(values)} numbers where {count} belong")
    return tuple(checked_number(value) for value in values)


def checked_pair(values: Any) -> tuple[int, int]:
    """Two numbers."""
    first, second = checked_numbers(values, 2)
    return first, second


def checked_four(values: Any) -> tuple[int, int, int, int]:
    """Four numbers."""
    first, second, third, fourth = checked_numbers(values, 4)
    return first, second, third, fourth


def checked_flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def checked_text(value: Any) -> str:
    """Text that can be a name of a file."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    value.encode("utf-8", "surrogateescape")
    return value
