# SPDX-License-Identifier: Apache-2.0
"""Figures of resource profiles over time, and of totals beside those of emulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.emulation.usage import Usage
from probe.formats.arrays import FloatArray
from probe.report.drawing import COLOURS, INK, OTHER, Drawing, blank

_HEIGHT = 2.6
_MEGA = 1e6
_MOST_ROWS = 40
"""Of the processes with the most CPU time."""


@dataclass(frozen=True)
class Shown:
    """A profile in a report: of the command, or of something that is drawn beside it."""

    name: str
    usage: Usage


@dataclass(frozen=True)
class _Shape:
    """A figure over time: of its file, its title and its axis; what values are divided by, whether they are per second;
    columns and what the legend calls them."""

    name: str
    title: str
    axis: str
    unit: float
    per_second: bool
    columns: Mapping[str, str]


_OVER_TIME = (
    _Shape(
        "usage-cpu", "Processors in use", "processors", 1.0, True, {"cpu_user": "user code", "cpu_kernel": "kernel"},
    ),
    _Shape("usage-memory", "Memory", "MB", _MEGA, False, {"resident": "resident", "peak": "peak of one process"}),
    _Shape("usage-storage", "Input and output by calls", "MB/s", _MEGA, True, {"read": "read", "written": "written"}),
    _Shape(
        "usage-devices", "Input and output of devices", "MB/s", _MEGA, True,
        {"device_read": "read", "device_written": "written"},
    ),
    _Shape("usage-network", "Network", "MB/s", _MEGA, True, {"net_received": "received", "net_sent": "sent"}),
    _Shape(
        "usage-processes", "Processes and threads", "count", 1.0, False,
        {"processes": "processes", "threads": "threads"},
    ),
)  # fmt: skip


def usage_figures(
    profile: Shown, others: Sequence[Shown], emulated: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Drawing]:
    """Figures of one profile. `others`: drawn beside it, as a profile of its emulation. `emulated`: the totals that
    `probe emulate --json` prints, by the emulation's name."""
    drawings = [_over_time(profile, others, shape) for shape in _OVER_TIME]
    return [*drawings, _tree(profile.usage), _totals(profile.usage, emulated)]


def _values(usage: Usage, column: str, shape: _Shape) -> FloatArray:
    values = usage.column(column) / shape.unit
    return np.asarray(values / np.diff(usage.end, prepend=0.0) if shape.per_second else values)


def _over_time(profile: Shown, others: Sequence[Shown], shape: _Shape) -> Drawing:
    rows: list[tuple[Any, ...]] = []
    unknown = []
    figure, axes = blank(_HEIGHT)
    for number, one in enumerate([profile, *others]):
        for place, (column, called) in enumerate(shape.columns.items()):
            values = _values(one.usage, column, shape)
            if np.isnan(values).all():
                unknown.append(f"{called}: {_missing(one.usage, column)}")
                continue
            axes.stairs(
                np.nan_to_num(values), np.concatenate([[0.0], one.usage.end]), fill=False, linewidth=1.2,
                label=f"{one.name}: {called}" if others else called,
                color=OTHER if number else COLOURS[place], linestyle=(":", "--")[place] if number else "-",
            )  # fmt: skip
            rows += [(one.name, column, float(t), float(v)) for t, v in zip(one.usage.end, values, strict=True)]
    caption = f"{shape.axis} over the seconds of the run, sample by sample."
    if unknown:
        caption += f" Not known: {'; '.join(dict.fromkeys(unknown))}."
    if not rows:
        return Drawing(shape.name, shape.title, caption, None)
    axes.set_xlabel("seconds")
    axes.set_ylabel(shape.axis)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    return Drawing(shape.name, shape.title, caption, figure, ("profile", "column", "end", "value"), rows)


def _tree(usage: Usage) -> Drawing:
    """Processes as rows: a bar for each, from when it was first seen until it was last."""
    title = "Processes over time"
    shown = sorted(sorted(usage.header.processes, key=lambda one: -one.cpu)[:_MOST_ROWS], key=lambda one: one.begin)
    if not shown:
        return Drawing("usage-tree", title, "Not known: no look met a process, or the profile is older.", None)
    figure, axes = blank(max(1.2, 0.22 * len(shown) + 0.7))
    least = usage.seconds / 300
    for place, one in enumerate(shown):
        axes.barh(place, max(least, one.end - one.begin), left=one.begin, height=0.6, color=COLOURS[0])
    axes.set_yticks(range(len(shown)), [f"{one.name[:20]} {one.pid}, {one.cpu:.2f} s" for one in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, usage.seconds)
    axes.set_xlabel("seconds")
    caption = "From when a process was first seen until it was last; beside its name its own CPU time."
    left = len(usage.header.processes) - len(shown)
    caption += f" {left} with less CPU time are not drawn." * bool(left)
    rows = [(one.pid, one.name, one.begin, one.end, one.cpu) for one in usage.header.processes]
    return Drawing("usage-tree", title, caption, figure, ("pid", "name", "begin", "end", "cpu_seconds"), rows)


def _missing(usage: Usage, column: str) -> str:
    about = usage.header.columns.get(column)
    return about.missing if about and about.missing else "no such column"


def _totals(usage: Usage, emulated: Mapping[str, Sequence[Mapping[str, Any]]]) -> Drawing:
    """Each figure of each emulation over the profile's: 1 is as profiled."""
    title = "Profile against emulation"
    rows = [
        (name, total["name"], total["unit"], total["profiled"], total["wanted"], total["emulated"])
        for name, totals in emulated.items()
        for total in totals
        if total["profiled"] is not None
    ]
    if not rows:
        return Drawing("emulation", title, "No emulation is given: name files of `probe emulate --json`.", None)
    figures = list(dict.fromkeys(row[1] for row in rows))
    figure, axes = blank(_HEIGHT + 0.3)
    width = 0.8 / len(emulated)
    for number, name in enumerate(emulated):
        ratios = {row[1]: row[5] / row[3] for row in rows if row[0] == name and row[3] > 0}
        places = [place + (number - (len(emulated) - 1) / 2) * width for place in range(len(figures))]
        heights = [ratios.get(one, np.nan) for one in figures]
        axes.bar(places, heights, width=width, color=COLOURS[number % len(COLOURS)], label=name)
    axes.axhline(1.0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(figures)), figures)
    axes.set_ylabel("emulated over profiled")
    axes.legend(fontsize=7)
    caption = f"The profiled run took {usage.seconds:.3g} s. Run times of emulations have no interval."
    header = ("emulation", "figure", "unit", "profiled", "wanted", "emulated")
    return Drawing("emulation", title, caption, figure, header, rows)
