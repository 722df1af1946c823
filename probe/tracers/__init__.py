# SPDX-License-Identifier: Apache-2.0
"""Tracers: from a program to a profile. One module per tracer, each with the same `trace` function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from checkpoint.errors import ProbeError
from checkpoint.process.program import Program, Streams
from probe.formats.choices import NATIVE, TRACERS, VALGRIND
from probe.formats.profile import Profile
from probe.tracers import exact, native, pin, valgrind
from probe.tracers.library_time import InLibraries


def trace_program(
    program: Program,
    *,
    tracer: str = "auto",
    interval: float | None = None,
    streams: Streams,
    cpu: int | None = None,
    progress: Callable[[float], None] | None = None,
    soon: bool = False,
) -> Profile:
    """Trace with the tracer of that name; `auto` is the native one. `interval` in its unit, None: its choice.

    Raises ToolMissing where the tracer is not installed, and what the tracer raises; with `soon` the native one raises
    WorkedByChildren as soon as that is likely.
    """
    if tracer in ("auto", NATIVE):
        traced = partial(native.trace, interval=interval, streams=streams, cpu=cpu, progress=progress, soon=soon)
        try:
            return traced(program)
        except InLibraries:
            return traced(replace(program, choosing=True))
    if tracer not in TRACERS:
        raise ProbeError(f"no tracer {tracer!r}; there are {', '.join(TRACERS)}")
    instructions = exact.DEFAULT_INTERVAL if interval is None else round(interval)
    trace = valgrind.trace if tracer == VALGRIND else pin.trace
    return trace(program, interval=instructions, streams=streams, cpu=cpu, progress=progress)
