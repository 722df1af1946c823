# SPDX-License-Identifier: Apache-2.0
"""Sizes on the command line."""

from __future__ import annotations

import re
from typing import Any

import click

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


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
