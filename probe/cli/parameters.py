# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that options take, and options that several commands have."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from checkpoint.binary.isa import DEFAULT_ISA, ISA_BASELINES
from probe.formats.choices import AUTO, INSTRUCTIONS, SECONDS, TRACERS, unit_of
from reducer.choices import COMPRESSIONS

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_MOST_WARMUP = 100
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def _quantity(value: Any, units: str) -> tuple[float, str] | None:
    """(number, what `units`, a regular expression with one group, matched behind it); None for anything else."""
    found = re.fullmatch(rf"([0-9]*\.?[0-9]+)\s*{units}", str(value).strip())
    return (float(found[1]), found[2]) if found else None


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A length of time such as 50ms or 0.1s; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _quantity(value, "(us|ms|s|)")
        if not found or found[0] <= 0:
            self.fail(f"{value!r} is not a length of time such as 50ms", param, ctx)
        return found[0] * _UNITS[found[1]]


class NodeSeconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A run time on a node such as n17=812.5s: (name, seconds)."""

    name = "node=duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value[0], value[1]
        node, sign, time = str(value).rpartition("=")
        if not node or not sign:
            self.fail(f"{value!r} is not a node and a time such as n17=812.5s", param, ctx)
        return node, Duration().convert(time, param, ctx)


@dataclass(frozen=True)
class Length:
    """Of an interval: `value` in `unit`, SECONDS or INSTRUCTIONS; None: that of the tracer."""

    value: float
    unit: str | None

    def for_tracer(self, tracer: str) -> float:
        """The length in the tracer's unit. Raises click.UsageError where it was given in the other."""
        wanted = unit_of(tracer)
        if self.unit in (None, wanted):
            return self.value
        such = "lengths of time such as 50ms" if wanted == SECONDS else "numbers of instructions such as 100M"
        raise click.UsageError(f"--interval: the intervals of --tracer {tracer} are {such}")


class Interval(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A length of time such as 50ms, or instructions such as 100M; a bare number is in the tracer's unit."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Length:
        if isinstance(value, Length):
            return value
        found = _quantity(value, "(us|ms|s|[kMG]|)")
        if not found or found[0] <= 0:
            self.fail(f"{value!r} is neither a length of time such as 50ms nor instructions such as 100M", param, ctx)
        number, unit = found
        if unit in _UNITS:
            return Length(number * _UNITS[unit], SECONDS if unit else None)
        return Length(number * _SIZES[unit.lower()], INSTRUCTIONS)


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of bytes such as 20M or 1.5G (powers of 1000); a bare number is bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _quantity(value, "(?i:([kMG]?)B?)")
        if not found or found[0] <= 0:
            self.fail(f"{value!r} is not a size such as 20M", param, ctx)
        return int(found[0] * _SIZES[found[1].lower()])


class Share(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A share such as 2% or 0.02."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _quantity(value, "(%?)")
        share = found[0] / (100.0 if found[1] else 1.0) if found else 0.0
        if not 0.0 < share < 1.0:
            self.fail(f"{value!r} is not a share such as 2%", param, ctx)
        return share


class Warmup(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Intervals of warm-up, 0 to 100, or auto."""

    name = "warmup"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["auto"]:
        if value == AUTO:
            return AUTO
        try:
            intervals = int(value)
        except ValueError:
            intervals = -1
        if not 0 <= intervals <= _MOST_WARMUP:
            self.fail(f"{value!r} is neither a number of intervals from 0 to {_MOST_WARMUP} nor auto", param, ctx)
        return intervals


class Throughput(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Bytes per second such as 110M or 1.2GB/s; zero is a connection that is down."""

    name = "bytes/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _quantity(value, "(?i:([kMG]?)B?(?:/s)?)")
        if not found:
            self.fail(f"{value!r} is not a throughput such as 110M (bytes per second)", param, ctx)
        return found[0] * _SIZES[found[1].lower()]


class Moment(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A time of day in ISO 8601; without a zone it is local time. Seconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time such as 2026-11-20T16:00:00Z", param, ctx)


MAX_PHASES = click.option(
    "--max-phases", type=click.IntRange(1, 1000), default=30, show_default=True, help="Each is a checkpoint."
)
DIMENSIONS = click.option(
    "--dimensions", type=click.IntRange(1, 1000), default=15, show_default=True, help="Of projected vectors."
)
SEED = click.option("--seed", type=int, default=1, show_default=True, help="Of projection, k-means and folds.")
"""Options of whatever selects phases."""

PROGRAM = click.argument("program", metavar="-- PROGRAM [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
TRACER = click.option(
    "--tracer", type=click.Choice(TRACERS), default="auto", show_default=True, help="What counts blocks; auto: native."
)
INTERVAL = click.option(
    "--interval", type=Interval(), help="Length of an interval, as 50ms (default: by the run); valgrind: instructions."
)
ISA = click.option(
    "--isa",
    type=click.Choice(list(ISA_BASELINES)),
    default=DEFAULT_ISA,
    show_default=True,
    help="CPU features the C library may choose its functions by.",
)
STDIN = click.option(
    "--stdin", type=click.Path(exists=True, dir_okay=False), default="/dev/null", help="File for standard input."
)
MAKES = click.option(
    "--makes",
    multiple=True,
    metavar="PATTERN",
    help="Remove these files of the program's folder, which it makes, before each run. Repeatable.",
)
SCRUB = click.option(
    "--scrub-env",
    multiple=True,
    metavar="PATTERN",
    help="Run the program without these variables; all: with no others than harmless ones. Repeatable.",
)
COMPRESS = click.option(
    "--compress",
    type=click.Choice(COMPRESSIONS),
    default="gzip",
    show_default=True,
    help="How the probe is compressed; zstd is smaller, but not every node reads it.",
)
TARGET_ERROR = click.option(
    "--target-error", type=Share(), help="Repeat until the 95 % interval is within this share. [default: 3%]"
)
RUNS = click.option(
    "--runs",
    type=click.IntRange(0, 1000),
    help="Full runs between the rounds of the self-check, from which ET_ref comes; without it by the program's length.",
)
BUDGET = click.option(
    "--budget",
    type=click.IntRange(0, 1_000_000),
    metavar="SECONDS",
    help="How long the phases may be timed for a width.",
)
WORKER_PROGRAM = click.option(
    "--program", "worker_program", metavar="PATH", help="Of a wrapper's processes probe the one that executes this."
)
WORKER = click.option(
    "--worker", type=click.IntRange(min=1), help="Of a wrapper's processes probe this one, by its number in a refusal."
)
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
PROBE_FILE = click.argument("probe_file", metavar="FILE.probe", type=click.Path(path_type=Path, readable=False))
