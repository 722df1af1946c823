# SPDX-License-Identifier: Apache-2.0
"""The recorded rows: one line of JSON for each program tried, in data/breadth.jsonl. Standard library alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FILE = Path(__file__).resolve().parents[3] / "data" / "breadth.jsonl"
FORMAT_VERSION = 1
KEY = ("program", "command", "package", "commit")
"""What a row is recorded by; a newer one replaces it."""

_HEAD = {"rows": "scripts/bench breadth", "format_version": FORMAT_VERSION}


class DamagedRecord(Exception):
    """The recorded file is not what this program wrote: nothing is added to it."""


def read_rows(file: Path = FILE) -> list[Row]:
    """All rows, in the order in which they were measured. Raises DamagedRecord naming the file and what is wrong."""
    if not file.exists():
        return []
    try:
        head, *rows = [json.loads(line) for line in file.read_text().splitlines()]
        if head != _HEAD:
            raise ValueError(f"first line {head!r}")
        for row in rows:
            if not all(isinstance(row[name], str) for name in (*KEY, "outcome", "kind")):
                raise ValueError("a row without its key")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedRecord(f"{file}: damaged ({error!r}); take it from the repository again") from error
    return rows


def row_key(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def add_row(new: Row, file: Path = FILE) -> None:
    """Append, whole or not at all; a row of the same key gives way."""
    rows = [row for row in read_rows(file) if row_key(row) != row_key(new)]
    partial = file.with_suffix(f".{os.getpid()}.partial")
    lines = [json.dumps(line, allow_nan=False) for line in (_HEAD, *rows, new)]
    partial.write_text("\n".join(lines) + "\n")
    partial.replace(file)


def newest(rows: Sequence[Row]) -> list[Row]:
    """The last row of each program."""
    return list({row["program"]: row for row in rows}.values())
