# SPDX-License-Identifier: Apache-2.0
"""Small data-intensive applications and machines, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MACHINE = """
name = "plain"
[disk]
per_node = 1
controller = 0.001
seek = [0.0, 0.0]
rate = 1e6
capacity = 1e9
[bus]
latency = 0.0001
bandwidth = 1e7
[network]
latency = 0.01
bandwidth = 1e6
"""
"""Disk and network of 1 MB/s: a block of 1 MB takes a second on either."""

TITAN = {"family": "titan", "blocks": 1, "block_bytes": 1e6, "extent": [2.0, 2.0], "polar": 1.0, "compute": 0.5}
MICROSCOPE = {
    "family": "microscope", "block_bytes": 1e4, "slides": 3, "planes": 2, "slide": [20, 30], "queries": 40,
    "query": [3, 4], "compute": 0.0, "result_bytes": 0.0,
}  # fmt: skip


def toml(values: dict[str, Any]) -> str:
    """Top-level keys; a table as an inline one."""
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def described(folder: Path, base: dict[str, Any], **changed: Any) -> Path:
    """A description in a file of its own; a key whose value is None is left out."""
    values = {key: value for key, value in {**base, **changed}.items() if value is not None}
    path = folder / "data.toml"
    path.write_text(toml(values))
    return path


def machine(folder: Path, *changes: tuple[str, str]) -> Path:
    text = MACHINE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "machine.toml"
    path.write_text(text)
    return path
