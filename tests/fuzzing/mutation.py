# SPDX-License-Identifier: Apache-2.0
"""Change bytes and JSON at random, from a seed: damage, and what somebody would write on purpose."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

_NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    4095,
    4096,
    65535,
    1 << 31,
    (1 << 32) - 1,
    1 << 47,
    (1 << 63) - 1,
    1 << 63,
)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.0, -0.0, 1e-320, 0.5, 1e308, -1e308,
    float("nan"), float("inf"), "", "x", "\0", "../../etc/passwd", "/", "\x1b[2J\ud800", "9" * 400, "a" * 70_000,
    [], {}, [[]], [None], {"": None}, [0] * 1000, "0", "1e999", "NaN",
)  # fmt: skip


def damaged(choose: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """`data` with one to eight changes; parts of `others` may get into it."""
    out = bytearray(data)
    for _ in range(1 << choose.randrange(4)):
        at = choose.randrange(len(out) + 1)
        kind = choose.randrange(9)
        if kind <= 1 and out:
            out[at % len(out)] ^= 1 << choose.randrange(8)
        elif kind == 2 and out:
            out[at % len(out)] = choose.choice((0, 1, 127, 128, 255))
        elif kind == 3:
            width = choose.choice((1, 2, 4, 8))
            value = choose.choice(_NUMBERS) + choose.choice((-1, 0, 0, 1))
            out[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, choose.choice(("little", "big")))
        elif kind == 4:
            del out[at : at + choose.choice((1, 2, 8, 64, 4096))]
        elif kind == 5:
            out[at:at] = choose.randbytes(choose.choice((1, 4, 16)))
        elif kind == 6:
            start = choose.randrange(len(out) + 1)
            out[at:at] = out[start : start + choose.choice((4, 16, 256))]
        elif kind == 7 and others:
            other = choose.choice(list(others))
            start = choose.randrange(len(other) + 1)
            out[at : at + 16] = other[start : start + 16]
        elif kind == 8:
            del out[choose.choice((at, len(out) // 2, max(0, len(out) - 1))) :]
    return bytes(out[: 2 * len(data) + 4096])


def forged(choose: Random, value: Any) -> Any:
    """A JSON value like `value`, with one to four of its parts replaced, removed, doubled or moved."""
    made = copy.deepcopy(value)
    for _ in range(1 << choose.randrange(3)):
        places = list(_places(made))
        if not places:
            return choose.choice(_VALUES)
        holder, key = choose.choice(places)
        kind = choose.randrange(6)
        if kind <= 2:
            holder[key] = copy.deepcopy(choose.choice(_VALUES))
        elif kind == 3 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            with contextlib.suppress(OverflowError):
                holder[key] = choose.choice((-1, 0, 1e-9, 1e9, 1e300, 0.999)) * holder[key]
        elif kind == 4:
            if isinstance(holder, dict) or choose.random() < 0.5:
                del holder[key]
            else:
                holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other, place = choose.choice(places)
            # It may have been cut away meanwhile.
            if (isinstance(other, dict) and place in other) or (isinstance(other, list) and place < len(other)):
                holder[key] = copy.deepcopy(other[place])
    return made


def forged_json(choose: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """JSON changed as a value, mostly, or as bytes."""
    if choose.random() < 0.15:
        return damaged(choose, data, others)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(choose, data, others)
    return as_json(forged(choose, value))


def as_json(value: Any) -> bytes:
    """What an attacker writes: NaN and halves of characters included."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value[:200]):
            yield value, at
            yield from _places(inner)
