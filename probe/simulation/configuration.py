# SPDX-License-Identifier: Apache-2.0
"""Configuration files of Durango and CODES: sections of keys with values in quotes, as in the paper's listings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint.errors import ModelInvalid
from checkpoint.foreign_file import read_foreign

LARGEST_FILE = 1_000_000
MOST_NESTED = 20

_TOKEN = re.compile(r'(?P<space>\s+|#[^\n]*)|(?P<text>"[^"]*")|(?P<word>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<sign>[{}()=;,])')


@dataclass
class Section:
    """Keys with their values (a list has several), and sections inside. Remembers where it stands for complaints."""

    where: str
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)

    def text(self, key: str, default: str | None = None) -> str:
        """The one value of a key. Raises ModelInvalid where it is missing or a list."""
        found = self.values.get(key)
        if found is None and default is not None:
            return default
        if found is None or len(found) != 1:
            raise ModelInvalid(f'{self.where}: {key}="..." is wanted, one value')
        return found[0]

    def number(self, key: str, default: float | None = None) -> float:
        """The value of a key as a number. Raises ModelInvalid."""
        text = self.text(key, None if default is None else str(default))
        try:
            value = float(text)
        except ValueError:
            raise ModelInvalid(f'{self.where}: {key}="{text}" is no number') from None
        if not 0 <= value < 1e18:
            raise ModelInvalid(f'{self.where}: {key}="{text}": a number from 0 is wanted')
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """The value of a key as a whole number. Raises ModelInvalid."""
        value = self.number(key, default)
        if value != int(value):
            raise ModelInvalid(f'{self.where}: {key}="{value:g}": a whole number is wanted')
        return int(value)

    def section(self, name: str) -> Section:
        """A section inside. Raises ModelInvalid where it is missing."""
        if name not in self.sections:
            raise ModelInvalid(f"{self.where}: there is no section {name}")
        return self.sections[name]


def read_configuration(path: Path) -> Section:
    """All of a file. Raises ModelInvalid with file and line, and StorageError."""
    try:
        text = read_foreign(path, LARGEST_FILE).decode()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"{path}: not text, so no configuration") from error
    return _Reader(str(path), text).whole()


class _Reader:
    """Reads the tokens of one file."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._tokens = list(_tokens(name, text))
        self._at = 0

    def whole(self) -> Section:
        found = Section(self._name)
        while self._at < len(self._tokens):
            self._entry(found, 0)
        return found

    def _entry(self, into: Section, depth: int) -> None:
        """A section, or a key with its values."""
        line, key = self._next("a name")
        if not re.match(r"[A-Za-z_]", key):
            raise ModelInvalid(f"{self._name}:{line}: '{key}' cannot stand here; a name is expected")
        if key in into.values or key in into.sections:
            raise ModelInvalid(f"{self._name}:{line}: {key} is given twice")
        sign = self._next("'=' or '{'")
        if sign[1] == "=":
            into.values[key] = self._values()
            self._expect(";")
            return
        if sign[1] != "{" or depth >= MOST_NESTED:
            raise ModelInvalid(f"{self._name}:{sign[0]}: '{sign[1]}' cannot stand here; '=' or '{{' is expected")
        inside = into.sections[key] = Section(f"{self._name}:{line}")
        while self._peek() != "}":
            self._entry(inside, depth + 1)
        self._expect("}")

    def _values(self) -> tuple[str, ...]:
        if self._peek() != "(":
            return (self._text(),)
        self._expect("(")
        found = [self._text()]
        while self._peek() == ",":
            self._expect(",")
            found.append(self._text())
        self._expect(")")
        return tuple(found)

    def _text(self) -> str:
        line, token = self._next('a value in "quotes"')
        if not token.startswith('"'):
            raise ModelInvalid(f"{self._name}:{line}: '{token}' cannot stand here; a value in \"quotes\" is expected")
        # The paper prints long paths on two lines.
        return re.sub(r"\s*\n\s*", "", token[1:-1])

    def _expect(self, sign: str) -> None:
        line, token = self._next(f"'{sign}'")
        if token != sign:
            raise ModelInvalid(f"{self._name}:{line}: '{token}' cannot stand here; '{sign}' is expected")

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self, expected: str) -> tuple[int, str]:
        if self._at >= len(self._tokens):
            raise ModelInvalid(f"{self._name}: the file ends where {expected} is expected: it is cut short")
        self._at += 1
        return self._tokens[self._at - 1]


def _tokens(name: str, text: str) -> Iterator[tuple[int, str]]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ModelInvalid(f"{name}:{line}: {text[at]!r} cannot stand here")
        if found.lastgroup != "space":
            yield line, found[0]
        line += found[0].count("\n")
        at = found.end()
