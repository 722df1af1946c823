# SPDX-License-Identifier: Apache-2.0
"""One reader of foreign bytes: what it is given, and what it may do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.mutation import damaged

Change = Callable[[Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Reader:
    """`seeds`: whole inputs from the real writer, made in a folder. `read`: has one read, in an empty folder; returns
    what it gave. `refuses`: errors by which it may say no. `change`: makes another input of a seed.

    `exact`: whatever is changed, what is taken must give what the seed gave. `prepared`: around many inputs.
    """

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    read: Callable[[bytes, Path], Any]
    refuses: tuple[type[BaseException], ...]
    change: Change = damaged
    exact: bool = False
    prepared: Callable[[Path], AbstractContextManager[Any]] = field(default=lambda folder: nullcontext())
