# SPDX-License-Identifier: Apache-2.0
"""The published schemas, held against what commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def schema_errors(name: str, value: Any) -> list[str]:
    """Where `value` is not what the schema `name` (without .json) says, and why."""
    validator = Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text()))
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]
