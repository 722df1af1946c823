# SPDX-License-Identifier: Apache-2.0
"""Text that a node sends, made fit for messages: a hostile one must not drive the user's terminal or memory."""

from __future__ import annotations

import threading
import unicodedata
from typing import Final

TAIL_BYTES: Final = 16384
"""How much of a stream of messages is kept: its end."""


def printable(data: bytes | str, most: int = 500) -> str:
    """At most `most` characters on one line: control and format characters and line ends become single spaces."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    # Cut first: what is thrown away need not be looked at. Nothing below makes text longer.
    cut = text[: 4 * most]
    line = " ".join("".join(" " if acts(c) else c for c in cut).split())
    return line if len(line) <= most and len(cut) == len(text) else f"{line[:most]}..."


def printable_end(text: str, most: int = 500) -> str:
    """As `printable`, but the end is what is kept: programs name the fault last, Python after a long traceback."""
    end = text[-most:].lstrip()
    return f"{'...' * (len(end) < len(text.lstrip()))}{printable(end, most)}"


def printable_lines(data: bytes, most: int = TAIL_BYTES) -> str:
    """The last `most` characters of several lines, each without control and format characters; spaces of any kind are
    plain ones."""
    text = data.decode(errors="replace").replace("\r\n", "\n")[-most:]
    return "".join(c if c in "\n\t" or c.isprintable() else "?" if acts(c) else " " for c in text)


class Tail:
    """The end of a stream that somebody else writes, of bounded size. Safe to use from two threads."""

    def __init__(self, most: int = TAIL_BYTES) -> None:
        self._most = most
        self._data = b""
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._data = (self._data + data)[-self._most :]

    def text(self) -> str:
        """What is kept, printable, line by line."""
        with self._lock:
            return printable_lines(self._data, self._most)


def acts(character: str) -> bool:
    """Whether it acts instead of showing: control codes, direction marks, surrogates, line separators."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
