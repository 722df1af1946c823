# SPDX-License-Identifier: Apache-2.0
"""Tracers: from a program to a profile. One module per tracer, each with the same `trace` function."""

from __future__ import annotations

from collections.abc import Callable

from checkpoint.errors import ToolMissing
from checkpoint.program import Program, Streams
from probe.profile import Profile
from probe.tracers import native

TRACERS = ("auto", "native", "valgrind", "pin")


def trace_program(
    program: Program,
    *,
    tracer: str = "auto",
    interval: float | None = None,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Profile:
    """Trace with the tracer of that name; `auto` is the native one. `interval` in seconds, None: its default.

    Raises ToolMissing for the instruction-exact tracers, which this version does not contain.
    """
    if tracer in ("auto", native.NAME):
        chosen = native.DEFAULT_INTERVAL if interval is None else interval
        return native.trace(program, interval=chosen, streams=streams, cpu=cpu, progress=progress)
    raise ToolMissing(f"tracer {tracer!r} is not part of this version; use --tracer native")
