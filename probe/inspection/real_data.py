# SPDX-License-Identifier: Apache-2.0
"""Say how much of a probe's memory is the program's own data, and where it lies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from checkpoint.linux import PAGE_SIZE
from probe.formats.manifest import Manifest
from probe.formats.phase_record import PhaseRecord, Synthetic

REAL, PARTLY = "real", "partly synthetic"
_NONE = Synthetic(0, 0, 0, 0, 0, (), "", 0, 0, 0, 0, 0, 0, 0, None, None)
_WORDS = PAGE_SIZE // 8
_MOST_MAPPINGS = 6
_NOT_SHOWN = ("mappings", "all_words", "kept_pages", "blocks")


def real_data(manifest: Manifest) -> dict[str, Any]:
    """`data`, `real_share` and `memory` of a probe's description (docs/json.md)."""
    words = [_words(phase) for phase in manifest.phases]
    every, replaced = sum(all_words for all_words, _ in words), sum(gone for _, gone in words)
    return {
        "data": PARTLY if replaced else REAL,
        "real_share": 1.0 - replaced / every if every else 1.0,
        "memory": _memory(manifest),
    }


def real_sentence(found: Mapping[str, Any]) -> str:
    """How much of the memory is the program's own, by mapping; `found` is a probe's description, or `real_data`."""
    places = ", ".join(
        f"{m['name']} {1 - m['replaced'] / m['words']:.1%}" for m in found["memory"][:_MOST_MAPPINGS] if m["words"]
    )
    by_mapping = f" ({places})" if places else ""
    kept = "so are stack, registers, program and files"
    return f"{found['real_share']:.2%} of the memory is the program's own{by_mapping}; {kept}"


def _words(phase: PhaseRecord) -> tuple[int, int]:
    """Words of a phase's memory other than zero, all of them where nobody looked, and those replaced."""
    found = phase.synthetic
    if found is None or not found.all_words:
        return phase.checkpoint.kept_pages * _WORDS, 0
    return found.all_words, found.words


def _memory(manifest: Manifest) -> list[dict[str, Any]]:
    """Mappings of all phases that were looked at, those of one name together, those with most real data first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for phase in manifest.phases:
        for one in phase.synthetic.mappings if phase.synthetic else ():
            for at, value in enumerate((one.pages, one.words, one.replaced)):
                sums[one.name][at] += value
    ranked = sorted(sums.items(), key=lambda item: (item[1][2] - item[1][1], item[0]))
    return [{"name": name, "pages": p, "words": w, "replaced": r} for name, (p, w, r) in ranked]


def phase_data(phase: PhaseRecord) -> dict[str, Any]:
    """`real_share` and `synthetic` of a phase's description."""
    shown = {name: value for name, value in asdict(phase.synthetic or _NONE).items() if name not in _NOT_SHOWN}
    return {"real_share": (phase.synthetic or _NONE).real_share, "synthetic": shown}
