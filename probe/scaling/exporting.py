# SPDX-License-Identifier: Apache-2.0
"""Write runs for Extra-P, in its text format (`docs/file-formats.md` of Extra-P 4)."""

from __future__ import annotations

import numpy as np

from probe.formats.arrays import FloatArray
from probe.scaling.fitting import Curve
from probe.scaling.model import KernelModel


def extrap_text(model: KernelModel) -> str:
    """The runs that the model's curves go through: one parameter, cores, and one region for each part of the time.

    Values are seconds for one unit of work. Every region has all points, as the format demands: where a part has no
    run, as MPI on one core, its time is 0.
    """
    points = " ".join(f"({size})" for size in model.sizes)
    lines = [
        f"# {_line(model.name)}: {len(model.runs)} runs",
        "# Seconds for one unit of work; strong scaling, so that exponents below zero are wanted.",
        "PARAMETER cores",
        f"POINTS {points}",
        "METRIC time",
    ]
    for part, curve in model.parts.items():
        lines.append(f"REGION {_line(model.kernel)}->{part}")
        lines += [f"DATA {_values(curve, size)}" for size in model.sizes]
    return "\n".join(lines) + "\n"


def _values(curve: Curve, size: int) -> str:
    times: FloatArray = curve.times[curve.x == size]
    # The format's grammar knows no exponents.
    return " ".join(np.format_float_positional(value, trim="-") for value in times) or "0"


def _line(text: str) -> str:
    return " ".join(text.split())


def file_name(model: KernelModel) -> str:
    """Such as gem-haswell.txt."""
    letters = "".join(c if c.isalnum() and c.isascii() else "-" for c in f"{model.kernel}-{model.node_type}")
    return f"{letters}.txt"
