# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that ask how applications scale."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

APPLICATION = click.argument(
    "application_file", metavar="APPLICATION.toml", type=click.Path(path_type=Path, readable=False)
)


class _Setting(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A parameter and its value such as its_stop=7."""

    name = "name=number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, _, number = str(value).partition("=")
        try:
            found = float(number)
        except ValueError:
            found = math.nan
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or not math.isfinite(found):
            self.fail(f"{value!r} is not a parameter and a number such as its_stop=7", param, ctx)
        return name, found


class LongDuration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A length of time such as 90s, 30m, 2h or 1d; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d*\.?\d+)\s*([smhd]?)", str(value).strip())
        if not found or float(found[1]) <= 0:
            self.fail(f"{value!r} is not a length of time such as 2h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Numbers of cores, or of something else, such as 1,2,4 or 16..128, which doubles from 16 on."""

    name = "numbers"

    def __init__(self, of: str = "cores") -> None:
        self._of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: set[int] = set()
        for part in str(value).split(","):
            first, dots, last = part.strip().partition("..")
            if not re.fullmatch(r"\d{1,9}", first) or (dots and not re.fullmatch(r"\d{1,9}", last)):
                self.fail(f"{value!r} is not a list of numbers such as 1,2,4 or 16..128", param, ctx)
            number, end = int(first), int(last) if dots else int(first)
            if number < 1 or end < number:
                self.fail(f"{value!r}: {part} is no number of {self._of}, or ends before it begins", param, ctx)
            while number <= end:
                found.add(number)
                number *= 2
        return tuple(sorted(found))


class TypeWait(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A type of nodes and the wait for it such as haswell=2h."""

    name = "type=duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value[0], value[1]
        node_type, sign, time = str(value).rpartition("=")
        if not node_type or not sign:
            self.fail(f"{value!r} is not a type and a wait such as haswell=2h", param, ctx)
        return node_type, LongDuration().convert(time, param, ctx)


def _as_dict(_context: click.Context, _parameter: click.Parameter, given: Any) -> dict[str, float]:
    return dict(given)


SETTINGS = click.option(
    "--set", "settings", metavar="NAME=NUMBER", type=_Setting(), multiple=True, callback=_as_dict,
    help="A parameter in place of what the inputs say. Repeatable.",
)  # fmt: skip

KERNELS = click.option(
    "--kernel", "kernels", metavar="NAME", multiple=True, help="This kernel alone. Repeatable. [default: all]"
)
FORMS = click.option(
    "--forms",
    type=click.Choice(("chosen", "paper", "rival")),
    default="chosen",
    show_default=True,
    help="The better forms of curves, those of ComPat D4.3, or Extra-P's.",
)
