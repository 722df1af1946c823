# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that options take."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any

import click

from probe.profile import INSTRUCTIONS, SECONDS
from probe.tracers import unit_of

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A length of time such as 50ms or 0.1s; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|s|)", str(value).strip())
        if not found or float(found[1]) <= 0:
            self.fail(f"{value!r} is not a length of time such as 50ms", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


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
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|s|[kMG]|)", str(value).strip())
        if not found or float(found[1]) <= 0:
            self.fail(f"{value!r} is neither a length of time such as 50ms nor instructions such as 100M", param, ctx)
        if found[2] in _UNITS:
            return Length(float(found[1]) * _UNITS[found[2]], SECONDS if found[2] else None)
        return Length(float(found[1]) * _SIZES[found[2].lower()], INSTRUCTIONS)


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of bytes such as 20M or 1.5G (powers of 1000); a bare number is bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kMG]?)B?", str(value).strip(), re.IGNORECASE)
        if not found or float(found[1]) <= 0:
            self.fail(f"{value!r} is not a size such as 20M", param, ctx)
        return int(float(found[1]) * _SIZES[found[2].lower()])


class Share(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A share such as 2% or 0.02."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(%?)", str(value).strip())
        share = float(found[1]) / (100.0 if found[2] else 1.0) if found else 0.0
        if not 0.0 < share < 1.0:
            self.fail(f"{value!r} is not a share such as 2%", param, ctx)
        return share


class Throughput(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Bytes per second such as 110M or 1.2GB/s; zero is a connection that is down."""

    name = "bytes/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kMG]?)(?:B?(?:/s)?)", str(value).strip(), re.IGNORECASE)
        if not found:
            self.fail(f"{value!r} is not a throughput such as 110M (bytes per second)", param, ctx)
        return float(found[1]) * _SIZES[found[2].lower()]


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
