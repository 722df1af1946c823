# SPDX-License-Identifier: Apache-2.0
"""Say why a run has too few intervals: too little work is one reason of four."""

from __future__ import annotations

from checkpoint.criu.tool import read_tail
from checkpoint.process.program import Streams
from probe.foreign_text import printable_end

_LONGEST_QUOTE = 300
_LITTLE = 0.1
"""A program that computes for less than this share of its time waits: other work does not leave it so little."""


def why_too_few(seconds: float, cpu_seconds: float, needed_seconds: float, streams: Streams) -> str:
    """A sentence on what to do about a run of `seconds`, `cpu_seconds` of them computed, with too few intervals.

    `needed_seconds`: a run of so long has enough of them, if it computes in code that can be counted.
    """
    said = printable_end(read_tail(streams.stderr), _LONGEST_QUOTE)
    if seconds < needed_seconds:
        # It may have met an error that its exit status hides.
        quoted = f" It said on standard error: {said}" if said else ""
        return f"Give it more work, or a shorter --interval.{quoted}"
    if cpu_seconds < _LITTLE * seconds:
        return (
            f"It computed for {cpu_seconds:.3f} s of them and waited for the rest, for a disk, a network, a timer or "
            "another process: more of that makes no intervals."
        )
    return (
        "Most of that time it was in the kernel or in code that cannot be counted natively (made at run time, or in "
        "blocks too short for a jump): try --tracer valgrind."
    )
