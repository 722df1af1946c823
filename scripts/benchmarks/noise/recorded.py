# SPDX-License-Identifier: Apache-2.0
"""The records of quiet and disturbed machines, in data/noise: one file for each program and state.

A record holds all that an estimator is made of, so that estimators can be compared without a machine: the probe's
manifest, repeats on the candidate, and the intervals of full runs. Times are whole microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_ROOT = Path(__file__).resolve().parents[3]
FOLDER = _ROOT / "data" / "noise"
QUIET, DISTURBED = "quiet", "disturbed"

ANYWHERE = "/project"
"""Stands for the checkout's folder: where a checkout was is nobody's business."""

_DIGITS = 6


def keep(record: Record, folder: Path = FOLDER) -> None:
    """Write it, whole or not at all, in place of an older one of the same program and state; a failure in place of no
    measurement."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(record["program"], record["state"], folder)
    if "failure" in record and not is_due(record["program"], record["state"], folder):
        return
    partial = path.with_suffix(".partial")
    text = json.dumps({**record, **_rounded(record)}, allow_nan=False)
    partial.write_text(text.replace(str(_ROOT), ANYWHERE) + "\n")
    partial.replace(path)


def is_due(program: str, state: str, folder: Path = FOLDER) -> bool:
    """Whether there is no record, or that of a failure."""
    path = _path(program, state, folder)
    return not path.exists() or "failure" in json.loads(path.read_text())


def load_all(folder: Path = FOLDER) -> list[Record]:
    """The records there are, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _path(program: str, state: str, folder: Path) -> Path:
    return folder / f"{program}-{state}.json"


def _rounded(record: Record) -> Record:
    """What there are thousands of: repeats and intervals. The manifest keeps all digits."""
    return {name: _round(record[name]) for name in ("full", "candidate", "intervals") if name in record}


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    return [_round(one) for one in value] if isinstance(value, list) else value
