# SPDX-License-Identifier: Apache-2.0
"""Words between prober and node agent: docs/node-protocol.md.

Lines of JSON both ways; behind a "run" or "member" line follow as many raw bytes as it says. Neither side trusts the
other: lines, counts, sizes and silences are bounded.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Any

from checkpoint import strict_json

VERSION = 1

LONGEST_LINE = 1 << 20
"""Bytes of one line: the list of a probe's members is the longest."""

ALIVE_SECONDS = 5.0
"""Both sides say at least this often that they are there."""

SILENCE_SECONDS = 60.0
"""After so long without a word the other side is taken for lost."""

CHUNK = 1 << 18


class Lost(Exception):
    """The other side has gone, or talks nonsense; the text says which."""


def encode(message: dict[str, Any]) -> bytes:
    """One line. NaN and infinity have no place in it."""
    return strict_json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises Lost for anything else."""
    try:
        value = strict_json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise Lost(f"no JSON: {line[:80]!r}") from error
    if not isinstance(value, dict):
        raise Lost(f"no message: {line[:80]!r}")
    return value


class Input:
    """Lines and raw bytes from a descriptor; Lost at its end, after SILENCE_SECONDS, or for an endless line."""

    def __init__(self, descriptor: int, silence: float = SILENCE_SECONDS) -> None:
        self._descriptor, self.silence = descriptor, silence
        self._buffer = b""

    def message(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if len(self._buffer) > LONGEST_LINE:
                raise Lost("an endless line")
            self._buffer += self._more()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return decode(line)

    def raw(self, size: int, sink: Callable[[bytes], Any]) -> None:
        """Pass exactly `size` bytes on."""
        while size:
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            if not piece:
                self._buffer = self._more()
                continue
            sink(piece)
            size -= len(piece)

    def _more(self) -> bytes:
        deadline = time.monotonic() + self.silence
        while True:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Lost(f"silent for {self.silence:g} s")
            data = os.read(self._descriptor, CHUNK)
            if not data:
                raise Lost("gone")
            return data
