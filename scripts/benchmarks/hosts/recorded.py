# SPDX-License-Identifier: Apache-2.0
"""The recorded rows: one for each kept probe and processor, in data/hosts.json. Standard library alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts.processor import key, this_processor

Row = dict[str, Any]

FILE = Path(__file__).resolve().parents[3] / "data" / "hosts.json"
FORMAT_VERSION = 1


class DamagedRecord(Exception):
    """The recorded file is not what this program wrote: nothing is added to it."""


def read_rows(file: Path = FILE) -> list[Row]:
    """All rows, in the order in which they were measured. Raises DamagedRecord naming the file and what is wrong."""
    if not file.exists():
        return []
    try:
        value = json.loads(file.read_text())
        rows = value["rows"]
        if value["format_version"] != FORMAT_VERSION or not isinstance(rows, list):
            raise ValueError(f"format version {value['format_version']!r}")
        for row in rows:
            if not isinstance(row["program"], str) or not isinstance(row["probe"], str):
                raise ValueError("a row without a program")
            key(row["host"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedRecord(f"{file}: damaged ({error!r}); take it from the repository again") from error
    return rows


def add_rows(new: Sequence[Row], file: Path = FILE) -> None:
    """Append, whole or not at all; a row of the same probe and processor gives way to a newer one."""
    replaced = {(row["probe"], key(row["host"])) for row in new}
    kept = [row for row in read_rows(file) if (row["probe"], key(row["host"])) not in replaced]
    partial = file.with_suffix(f".{os.getpid()}.partial")
    text = json.dumps({"format_version": FORMAT_VERSION, "rows": [*kept, *new]}, indent=1, allow_nan=False)
    partial.write_text(text + "\n")
    partial.replace(file)


def missing(probes: Sequence[str], rows: Sequence[Row], processor: dict[str, Any]) -> list[str]:
    """Those of the probes, by id, that have no row on this processor."""
    known = {row["probe"] for row in rows if key(row["host"]) == key(processor)}
    return [probe for probe in probes if probe not in known]


def main() -> None:
    """Say in one line whether this processor has no row yet; nothing where it has."""
    processor = this_processor()
    if not any(key(row["host"]) == key(processor) for row in read_rows()):
        print(f"test: no row in docs/hosts.md for this processor ({processor['name']}): scripts/bench hosts")


if __name__ == "__main__":
    main()
