# SPDX-License-Identifier: Apache-2.0
"""Say why a run has too few intervals: too little work is one reason of five."""

from __future__ import annotations

from checkpoint.criu.tool import read_tail
from checkpoint.process.plain_run import PlainRun
from checkpoint.process.program import Streams
from probe.foreign_text import printable_end

_LONGEST_QUOTE = 300
_LITTLE = 0.1
"""A program that computes for less than this share of its time waits: other work does not leave it so little."""
_MOST = 0.5
"""A program that is in the kernel for more than this share of its time, the tool's included, has little to count."""


def why_too_few(seconds: float, cpu_seconds: float, needed_seconds: float, streams: Streams) -> str:
    """A sentence on what to do about a run of `seconds`, `cpu_seconds` of them computed, with too few intervals.

    `needed_seconds`: a run of so long has enough of them, if it computes in code that can be counted.
    """
    if seconds < needed_seconds:
        return _more_work(streams)
    if cpu_seconds < _LITTLE * seconds:
        return _waited(cpu_seconds)
    return (
        "Most of that time it was in the kernel or in code that cannot be counted natively (made at run time, or in "
        "blocks too short for a jump): try --tracer valgrind."
    )


def why_too_few_instructions(run: PlainRun, streams: Streams) -> str:
    """The same of a run under a tool that counts every instruction, in the kernel none."""
    if run.cpu < _LITTLE * run.wall:
        return _waited(run.cpu)
    if run.kernel > _MOST * run.cpu:
        return (
            f"It was in the kernel for {run.kernel:.3f} of {run.cpu:.3f} s, where no instruction is counted: more of "
            "that makes no intervals."
        )
    return _more_work(streams)


def _more_work(streams: Streams) -> str:
    """With what it said: it may have met an error that its exit status hides."""
    said = printable_end(read_tail(streams.stderr), _LONGEST_QUOTE)
    quoted = f" It said on standard error: {said}" if said else ""
    return f"Give it more work, or a shorter --interval.{quoted}"


def _waited(cpu_seconds: float) -> str:
    return (
        f"It computed for {cpu_seconds:.3f} s of them and waited for the rest, for a disk, a network, a timer or "
        "another process: more of that makes no intervals."
    )
