# SPDX-License-Identifier: Apache-2.0
"""Code, calls and memory of each phase: the probe's member `data/code` (docs/probe-format.md).

Made when the probe is packed, read by `probe explain`. Whoever reads it does not trust it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged

CODE_NAME = "code"
FORMAT_VERSION = 1
NO_FILE = -1
"""In place of an image's number: code that is in no file."""

MOST_BLOCKS = 512
"""Blocks of a phase that are kept, those with most instructions."""
MOST_BYTES = 64 << 20
_LARGEST = 1 << 64


@dataclass(frozen=True)
class PhaseCode:
    """One phase. Positions in `images`, or NO_FILE; link-time addresses.

    instructions    counted ones of all its intervals
    blocks          (image, address, bytes, instructions) of its blocks with most of them
    seen            (image, address, times) of the code that the representative was found in, looked at in equal
                    steps of time, system calls aside; empty where it was not looked at
    calls           (number, times) of the representative's system calls; `all_calls`: none is missing
    memory          (kind, name, pages mapped, pages touched) of its mappings, the most touched first
    """

    id: int
    instructions: float
    blocks: tuple[tuple[int, int, int, float], ...]
    seen: tuple[tuple[int, int, int], ...]
    calls: tuple[tuple[int, int], ...]
    all_calls: bool
    memory: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True)
class ProbeCode:
    """All phases, and (path, SHA-256 or "") of the images that they refer to."""

    images: tuple[tuple[str, str], ...]
    phases: tuple[PhaseCode, ...]


def encode(code: ProbeCode) -> bytes:
    """The member's bytes."""
    value = {
        "version": FORMAT_VERSION,
        "images": [list(image) for image in code.images],
        "phases": [vars(phase) for phase in code.phases],
    }
    return strict_json.dumps(value, separators=(",", ":")).encode()


def decode(data: bytes) -> ProbeCode:
    """Inverse of `encode`; everything is checked. Raises ProbeFileDamaged for anything else, and other versions."""
    try:
        value = strict_json.loads(data)
        if not isinstance(value, dict) or "version" not in value:
            raise ValueError("no version")
        if value["version"] != FORMAT_VERSION:
            raise ProbeFileDamaged(
                f"the probe's member data/{CODE_NAME} has version {value['version']!r}; this program reads "
                f"{FORMAT_VERSION}: use a newer one"
            )
        images = tuple((_text(path), _text(sha256)) for path, sha256 in value["images"])
        phases = tuple(_phase(one, len(images)) for one in value["phases"])
        if len({p.id for p in phases}) != len(phases):
            raise ValueError("a phase twice")
        return ProbeCode(images, phases)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ProbeFileDamaged(
            f"the probe's member data/{CODE_NAME} is damaged: {error!r}; build the probe again"
        ) from error


def _phase(value: Any, images: int) -> PhaseCode:
    def image(number: Any) -> int:
        return _number(number, NO_FILE, images)

    instructions = _amount(value["instructions"])
    blocks = tuple((image(i), _number(a), _number(n, 0, 1 << 31), _amount(x)) for i, a, n, x in value["blocks"])
    if len(blocks) > MOST_BLOCKS or sum(b[3] for b in blocks) > instructions * (1 + 1e-6):
        raise ValueError("more in the blocks than in the phase")
    if not isinstance(value["all_calls"], bool):
        raise ValueError("all_calls")
    return PhaseCode(
        _number(value["id"], 0, 1 << 31),
        instructions,
        blocks,
        tuple((image(i), _number(a), _number(n, 1)) for i, a, n in value["seen"]),
        tuple((_number(a, 0, 1 << 32), _number(n, 1)) for a, n in value["calls"]),
        value["all_calls"],
        tuple((_text(k), _text(n), _number(a), _number(b)) for k, n, a, b in value["memory"]),
    )


def _number(value: Any, least: int = 0, end: int = _LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < end:
        raise ValueError(f"{value!r} is no number from {least} on below {end}")
    return value


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 8192:
        raise ValueError(f"{str(value)[:80]!r} is no name")
    return value
