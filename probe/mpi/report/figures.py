# SPDX-License-Identifier: Apache-2.0
"""Figures of a simulated MPI program: ranks over time, critical path, loads of links, changed networks and cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from probe.formats.arrays import FloatArray
from probe.mpi.library.calls import names
from probe.mpi.report.analysis import Analysis
from probe.report.drawing import COLOURS, INK, MOST_VECTOR_MARKS, OTHER, Drawing, blank, label_rows, percents

STATES = {"computing": COLOURS[0], "waiting for others": COLOURS[1], "in calls": COLOURS[2]}
"""What a rank does at a time, and its colour."""

_BINS = 1000
_MOST_RANKS = 64
_MOST_LINKS = 40
_TIMELINE_ROWS = ("rank", "call", "name", "computing_from", "entered", "waited_until", "left")


def figures_of(found: Analysis) -> list[Drawing]:
    """All figures, in the order of the page."""
    return [_timeline(found), _path(found), _links(found), _changes(found)]


def _timeline(found: Analysis) -> Drawing:
    """Ranks as rows; where a bin of time has several states, its colour is their mixture."""
    shown = _chosen(len(found.ranks))
    edges = np.linspace(0.0, found.seconds, _BINS + 1)
    colours = np.array([to_rgb(colour) for colour in STATES.values()])
    picture = np.ones((len(shown), _BINS, 3))
    for row, rank in enumerate(shown):
        shares = _shares(found.watched.calls[rank], found.waited[rank], edges)
        picture[row] = shares @ colours + (1 - shares.sum(axis=1, keepdims=True))
    figure, axes = blank(max(1.6, 0.2 * len(shown) + 1.1))
    axes.imshow(
        np.clip(picture, 0, 1), aspect="auto", interpolation="nearest",
        extent=(0.0, found.seconds, len(shown) - 0.5, -0.5),
    )  # fmt: skip
    _draw_path(axes, found, shown)
    _name_ranks(axes, shown)
    axes.set_xlabel("simulated seconds")
    patches = [Patch(color=colour, label=name) for name, colour in STATES.items()]
    axes.legend(handles=patches, fontsize=7, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    totals = _totals(found)
    caption = (
        f"Of all ranks' time {totals[0]:.1%} is computing, {totals[1]:.1%} waiting for others to enter their calls, "
        f"{totals[2]:.1%} the calls themselves. The line is the critical path."
    )
    caption += f" {len(shown)} of {len(found.ranks)} ranks are drawn." * (len(shown) < len(found.ranks))
    return Drawing("mpi-timeline", "Ranks over time", caption, figure, _TIMELINE_ROWS, _call_rows(found))


def _chosen(ranks: int) -> list[int]:
    """All ranks, or some at equal distances."""
    return sorted({round(one) for one in np.linspace(0, ranks - 1, min(ranks, _MOST_RANKS))})


def _shares(times: FloatArray, until: FloatArray, edges: FloatArray) -> FloatArray:
    """(bins, states): of each bin of time, the shares of computing, waiting and calls."""
    entered, left = times[:, 0], times[:, 1]
    begins = np.concatenate([[0.0], left[:-1]]) if len(left) else left
    spans = ((begins, entered), (entered, until), (until, left))
    return np.stack([np.diff(_spent(*span, edges)) / np.diff(edges) for span in spans], axis=1)


def _spent(begin: FloatArray, end: FloatArray, at: FloatArray) -> FloatArray:
    """Of ascending spans, the seconds of them before each time."""
    if not len(begin):
        return np.zeros(len(at))
    before = np.concatenate([[0.0], np.cumsum(end - begin)])
    number = np.searchsorted(begin, at, side="right")
    last = np.maximum(number - 1, 0)
    return np.where(number > 0, before[last] + np.clip(at - begin[last], 0.0, (end - begin)[last]), 0.0)


def _totals(found: Analysis) -> FloatArray:
    """Shares of the states in the time of all ranks."""
    whole = np.array([0.0, found.seconds])
    shares = [_shares(times, until, whole)[0] for times, until in zip(found.watched.calls, found.waited, strict=True)]
    return np.asarray(np.mean(shares, axis=0))


def _draw_path(axes: Axes, found: Analysis, shown: Sequence[int]) -> None:
    places = np.interp(range(len(found.ranks)), shown, range(len(shown)))
    lines = [((one.begin, places[one.rank]), (one.end, places[one.last_rank])) for one in found.path.segments]
    axes.add_collection(
        LineCollection(lines, colors=INK, linewidths=0.9, rasterized=len(lines) > MOST_VECTOR_MARKS), autolim=False
    )


def _name_ranks(axes: Axes, shown: Sequence[int]) -> None:
    label_rows(axes, [f"rank {rank}" for rank in shown])
    axes.tick_params(axis="y", labelsize=7 if len(shown) < 40 else 5)
    axes.set_ylim(len(shown) - 0.5, -0.5)


def _call_rows(found: Analysis) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for one, times, until in zip(found.ranks, found.watched.calls, found.waited, strict=True):
        begun = 0.0
        functions = one.calls["function"].tolist()
        for number, (entered, left) in enumerate(times.tolist()):
            name = f"MPI_{names()[functions[number]]}"
            rows.append((one.rank, number, name, begun, entered, float(until[number]), left))
            begun = left
    return rows


def _path(found: Analysis) -> Drawing:
    """Seconds of the critical path that lie on each rank."""
    title = "Critical path"
    ranks = len(found.ranks)
    spent = np.zeros((ranks, 2))
    for one in found.path.segments:
        spent[one.last_rank, 0 if one.is_computing else 1] += one.seconds
    shown = sorted(np.argsort(-spent.sum(axis=1), kind="stable")[:_MOST_RANKS].tolist())
    figure, axes = blank(max(1.6, 0.2 * len(shown) + 0.8))
    places = range(len(shown))
    axes.barh(places, spent[shown, 0], height=0.7, color=STATES["computing"], label="computing")
    axes.barh(
        places, spent[shown, 1], left=spent[shown, 0], height=0.7, color=STATES["in calls"],
        label="in calls, and from rank to rank",
    )  # fmt: skip
    _name_ranks(axes, shown)
    axes.set_xlabel("seconds of the critical path")
    axes.legend(fontsize=7, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    own, whole = found.path.computing, found.path.seconds
    caption = (
        f"{own / whole:.1%} of {whole:.4g} s is computing, {1 - own / whole:.1%} is in calls. Where messages took no "
        f"time, the program would take {found.without_network:.4g} s: a faster network brings no more than that."
    )
    caption += f" {ranks - len(shown)} ranks with less of it are not drawn." * (len(shown) < ranks)
    header = ("begin", "rank", "end", "last_rank", "computing")
    rows = [(one.begin, one.rank, one.end, one.last_rank, int(one.is_computing)) for one in found.path.segments]
    return Drawing("mpi-path", title, caption, figure, header, rows)


def _links(found: Analysis) -> Drawing:
    title = "Load of links"
    links = found.links
    if not links:
        return Drawing("mpi-links", title, "No link carried anything.", None)
    loads = {one.name: one.carried / one.bandwidth / found.seconds for one in links}
    shown = sorted(links, key=lambda one: -loads[one.name])[:_MOST_LINKS]
    figure, axes = blank(max(1.6, 0.2 * len(shown) + 0.8))
    axes.barh(range(len(shown)), [loads[one.name] for one in shown], height=0.7, color=COLOURS[0])
    label_rows(axes, [one.name[-30:] for one in shown])
    axes.tick_params(axis="y", labelsize=7)
    axes.xaxis.set_major_formatter(percents())
    axes.set_xlim(left=0)
    axes.set_xlabel("of its bandwidth")
    busiest = shown[0]
    caption = (
        f"Bytes that each link carried, over what it could have carried in {found.seconds:.4g} s. {busiest.name} has "
        f"most: {loads[busiest.name]:.2%}, {busiest.carried / 1e6:.4g} MB."
    )
    caption += f" {len(links) - len(shown)} links with less are not drawn." * (len(shown) < len(links))
    header = ("link", "bandwidth", "carried", "load")
    rows = [(one.name, one.bandwidth, one.carried, loads[one.name]) for one in links]
    return Drawing("mpi-links", title, caption, figure, header, rows)


def _changes(found: Analysis) -> Drawing:
    rows = [(one.name, one.latency, one.bandwidth, one.cores, one.seconds) for one in found.changes]
    figure, axes = blank(0.3 * len(rows) + 1.2)
    axes.barh(0, found.seconds, height=0.7, color=OTHER)
    axes.barh(range(1, len(rows) + 1), [row[4] for row in rows], height=0.7, color=COLOURS[0])
    for place, seconds in enumerate([found.seconds, *(row[4] for row in rows)]):
        axes.text(seconds, place, f" {seconds:.4g} s", va="center", fontsize=7)
    axes.axvline(found.without_network, color=INK, linewidth=0.8, linestyle=":")
    label_rows(axes, ["as it is", *(row[0] for row in rows)])
    axes.set_xlim(0, 1.12 * max(found.seconds, *(row[4] for row in rows)))
    axes.set_xlabel("simulated seconds")
    best = min(found.changes[:-1], key=lambda one: one.seconds)
    faster = f", {found.seconds / best.seconds:.2f} times as fast" if best.seconds else ""
    caption = (
        f"The program simulated again, each time with one thing changed. Of {len(rows) - 1} changes that can be bought "
        f"most comes from this: {best.name}{faster}. Dotted: no network."
    )
    header = ("change", "latency", "bandwidth", "cores", "seconds")
    given = ("as it is", 1.0, 1.0, 1.0, found.seconds)
    return Drawing("mpi-changes", "What other networks and cores would buy", caption, figure, header, [given, *rows])
