# SPDX-License-Identifier: Apache-2.0
"""The processor of this machine: what tells it from others in the recorded rows. Standard library alone."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_FEATURES = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512vl", "avx512_bf16", "amx_tile", "sha_ni", "erms", "fsrm")
"""Flags that a C library or a compiler chooses code by."""


def this_processor() -> dict[str, Any]:
    """Make, family, model and stepping, caches, chosen flags, and the kernel that runs on it."""
    said = dict(_first_processor(Path("/proc/cpuinfo").read_text()))
    flags = set(said.get("flags", "").split())
    return {
        "make": said.get("vendor_id", ""),
        "name": said.get("model name", ""),
        "family": int(said.get("cpu family", -1)),
        "model": int(said.get("model", -1)),
        "stepping": int(said.get("stepping", -1)),
        "caches": caches(_CACHES),
        "features": [flag for flag in _FEATURES if flag in flags],
        "kernel": platform.release(),
    }


def _first_processor(text: str) -> list[tuple[str, str]]:
    lines = text.split("\n\n", 1)[0].splitlines()
    pairs = [line.partition(":") for line in lines if ":" in line]
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def caches(folder: Path) -> dict[str, str]:
    """Sizes by level, such as {"1 Data": "48K"}; empty where the kernel does not say."""
    found = {}
    for cache in sorted(folder.glob("index*")):
        level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
        found[f"{level} {kind}"] = size
    return found


def key(processor: dict[str, Any]) -> str:
    """One text for processors that are alike: the same make, model, stepping and caches."""
    sizes = ",".join(f"{name}={size}" for name, size in sorted(processor["caches"].items()))
    return f"{processor['make']}/{processor['family']}/{processor['model']}/{processor['stepping']}/{sizes}"
