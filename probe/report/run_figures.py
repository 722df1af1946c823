# SPDX-License-Identifier: Apache-2.0
"""Figures of the probe itself: where its phases are in the run, how they were told apart, what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from probe.formats.arrays import FloatArray, IntArray
from probe.formats.interval_table import IntervalTable
from probe.formats.intervals import WORK_UNIT
from probe.formats.phase_record import CRIU, PhaseRecord
from probe.report.drawing import (
    COLOURS,
    DROPPED,
    FAINT,
    INK,
    MOST_VECTOR_MARKS,
    OTHER,
    Drawing,
    blank,
    by_share,
    label_rows,
    percents,
    phase_colours,
    step,
)
from probe.report.gathering import Gathered
from probe.report.wording import percent, several, signed_percent, size

_MOST_ROWS = 20
_BINS = 1200
_FLAT = 0.01
"""Share of the variance below which the second coordinate gets little room."""

_STRIP_PIXELS = 24
_NO_INTERVALS = (
    "This probe does not hold the intervals of the run (it was built by an earlier version, or its table is of a later "
    "one): {}. Build it again to see {}."
)


def run_figures(found: Gathered) -> list[Drawing]:
    """All figures of the probe, in the order to read them."""
    return [timeline(found), vectors(found), shares(found), restore_errors(found), size_and_quality(found)]


def timeline(found: Gathered) -> Drawing:
    """Phases over the run, by time and by counted instructions."""
    table, m = found.intervals, found.manifest
    title = "Phases over the run"
    if table is None:
        return _marks_alone(found, title)
    own = by_share(m.phases)[:_MOST_ROWS]
    times = table.cpu if m.reference.clock == "cpu" else table.seconds
    groups = _groups(table, own)
    labels = [f"phase {p.id} · {percent(p.time_share)}" for p in own]
    rest = float(times[groups == len(own)].sum() / times.sum()) if times.sum() > 0 else 0.0
    if rest > 0:
        labels.append(f"all others · {percent(rest)}")
    figure, (by_time, by_work, lanes) = blank(
        2.6 + 0.19 * len(labels), 3, 1, height_ratios=[1, 1, max(3.0, 0.42 * len(labels))]
    )
    colours = [to_rgb(phase_colours(m.phases)[p.id]) for p in own] + [to_rgb(DROPPED)]
    begins = step(times)
    worked = step(table.work)
    occupied = _occupancy(groups, begins, len(own) + 1)
    _strip(by_time, occupied, colours, begins[-1])
    by_time.set_title(f"over time ({m.reference.clock}, seconds)", pad=11)
    unit, name = _work_unit(worked[-1])
    _strip(by_work, _occupancy(groups, worked, len(own) + 1), colours, worked[-1] / unit)
    by_work.set_title(f"over {WORK_UNIT} ({name})", pad=11)
    for row in range(len(labels)):
        picture = np.ones((1, occupied.shape[1], 4))
        picture[0, :, :3] = colours[row]
        picture[0, :, 3] = occupied[row]
        lanes.imshow(
            picture, extent=(0, max(begins[-1], 1e-9), row + 0.4, row - 0.4), aspect="auto", interpolation="none"
        )
    middles = (begins[:-1] + begins[1:]) / 2
    for row, phase in enumerate(own):
        at = middles[phase.representative]
        lanes.plot(at, row, marker="v", color=INK, markersize=5, markeredgecolor="white", markeredgewidth=0.6)
        for axes, position in ((by_time, at), (by_work, worked[phase.representative] / unit)):
            axes.plot(position, 1.12, marker="v", color=INK, markersize=3.5, clip_on=False)
    label_rows(lanes, labels)
    lanes.set_xlim(0, max(begins[-1], 1e-9))
    lanes.set_xlabel(f"{m.reference.clock} time since the start, seconds")
    columns = (a.tolist() for a in (table.phases, begins[:-1], times, table.work, table.seconds))
    rows = [(n, *values) for n, values in enumerate(zip(*columns, strict=True))]
    first = own[0] if own else None
    most = f" Phase {first.id} alone holds {percent(first.time_share)} of the time." if first else ""
    caption = (
        f"The run was cut into {several(len(table), 'interval')}; those that execute the same code at the same "
        f"speed form one of {several(len(m.phases), 'phase')}, each with a colour or a row of its own.{most} "
        "A triangle marks the one interval of a phase that was captured: only these are run on other nodes. The two "
        "strips differ where code is fast or slow: a phase that is wider in the upper one takes more time per "
        "instruction."
    )
    if len(m.phases) > _MOST_ROWS:
        caption += f" The {len(m.phases) - _MOST_ROWS} smallest phases are drawn together."
    head = ("interval", "phase", f"start_{m.reference.clock}_s", f"{m.reference.clock}_s", "work", "wall_s")
    return Drawing("timeline", title, caption, figure, head, rows)


def _marks_alone(found: Gathered, title: str) -> Drawing:
    """Where the regions lie, which every probe knows."""
    own = by_share(found.manifest.phases)[:_MOST_ROWS]
    figure, axes = blank(1.2 + 0.19 * len(own))
    colours = phase_colours(own)
    for row, phase in enumerate(own):
        axes.barh(row, phase.in_run.wall, left=phase.in_run.started, color=colours[phase.id], height=0.7)
        axes.plot(phase.in_run.started + phase.in_run.wall / 2, row, marker="v", color=INK, markersize=5)
    label_rows(axes, [f"phase {p.id} · {percent(p.time_share)}" for p in own])
    axes.set_xlim(0, found.manifest.timing.seconds)
    axes.set_xlabel("wall time since the start of the timing run, seconds")
    caption = _NO_INTERVALS.format(
        "only where its captured regions lie can be shown, not where else each phase runs", "the whole timeline"
    )
    rows = [(p.representative, p.id, p.in_run.started, p.in_run.wall) for p in by_share(found.manifest.phases)]
    return Drawing("timeline", title, caption, figure, ("interval", "phase", "start_wall_s", "wall_s"), rows)


def _groups(table: IntervalTable, own: Sequence[PhaseRecord]) -> IntArray:
    """Position in `own` of each interval's phase, len(own) for all others."""
    groups = np.full(len(table), len(own), dtype=np.int64)
    for number, phase in enumerate(own):
        groups[table.phases == phase.id] = number
    return groups


def _occupancy(groups: IntArray, edges: FloatArray, count: int) -> FloatArray:
    """Share of each of _BINS equal parts of the run that each group takes, count x _BINS."""
    whole = float(edges[-1])
    if whole <= 0:
        return np.zeros((count, _BINS))
    cuts = np.linspace(0.0, whole, _BINS + 1)
    lengths = np.diff(edges)
    shares = [np.diff(np.interp(cuts, edges, step(np.where(groups == group, lengths, 0.0)))) for group in range(count)]
    return np.clip(np.array(shares) * _BINS / whole, 0.0, 1.0)


def _strip(axes: Axes, occupied: FloatArray, colours: Sequence[Any], whole: float) -> None:
    """A strip of colour; where phases change faster than a pixel, they stand on each other with their shares."""
    levels = (np.arange(_STRIP_PIXELS) + 0.5) / _STRIP_PIXELS
    tops = np.cumsum(occupied, axis=0)
    at = (tops[None, :, :] < levels[:, None, None]).sum(axis=1).clip(0, len(colours) - 1)
    axes.imshow(np.array(colours)[at], extent=(0, max(whole, 1e-9), 0, 1), aspect="auto", interpolation="none")
    axes.set_yticks([])
    axes.set_ylim(0, 1)
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _work_unit(whole: float) -> tuple[float, str]:
    for unit, name in ((1e12, "trillions"), (1e9, "billions"), (1e6, "millions")):
        if whole >= unit:
            return unit, name
    return 1.0, "number"


def vectors(found: Gathered) -> Drawing:
    """Projected basic-block vectors in two dimensions."""
    table, m = found.intervals, found.manifest
    title = "What the intervals execute, in two dimensions"
    if table is None or table.coordinates.shape[1] < 2 or not len(table):
        reason = _NO_INTERVALS.format("their vectors cannot be drawn", "them")
        return Drawing("vectors", title, reason, None)
    first, second = (float(v) for v in table.explained[:2])
    flat = second < _FLAT
    figure, axes = blank(2.6 if flat else 5.2)
    colours = phase_colours(m.phases)
    shades = np.array([colours.get(phase, DROPPED) for phase in table.phases.tolist()])
    # The pale majority below, the phases with colours of their own on top.
    order = np.argsort([shade not in (OTHER, DROPPED) for shade in shades], kind="stable")
    many = len(table) > MOST_VECTOR_MARKS
    x, y = table.coordinates[:, 0], table.coordinates[:, 1]
    axes.scatter(x[order], y[order], s=10 if many else 18, c=shades[order], alpha=0.55, linewidths=0, rasterized=many)
    named = by_share(m.phases)
    chosen = [phase.representative for phase in named]
    axes.scatter(
        x[chosen], y[chosen], s=70, c=[colours[p.id] for p in named], marker="D", edgecolors=INK, linewidths=1.0,
        rasterized=len(named) > MOST_VECTOR_MARKS,
    )  # fmt: skip
    for phase in named[:_MOST_ROWS]:
        at = (float(x[phase.representative]), float(y[phase.representative]))
        axes.annotate(str(phase.id), at, xytext=(6, 5), textcoords="offset points", fontsize=8, fontweight="bold")
    # Where one direction holds nearly everything, noise in the other must not look like structure.
    low, high = axes.get_ylim()
    room = max(0.0, 0.25 * float(np.ptp(axes.get_xlim())) - (high - low)) / 2
    axes.set_ylim(low - room, high + room)
    axes.set_xlabel(f"first principal coordinate ({percent(first)} of the variance)")
    axes.set_ylabel(f"second ({percent(second)})")
    caption = (
        "Each dot is an interval; dots that lie together executed the same code in the same proportions. Diamonds with "
        "the phase's number are the captured representatives: each should lie within the cloud it stands for. The "
        f"picture keeps {percent(first + second)} of the variance that the selection saw, so phases that overlap here "
        "may be apart in the dimensions left out, or differ in speed alone."
    )
    if flat:
        caption += " Nearly all of it lies along one line: the program mixes two kinds of code in changing parts."
    rows = [
        (n, phase, *point)
        for n, (phase, point) in enumerate(zip(table.phases.tolist(), table.coordinates.tolist(), strict=True))
    ]
    names = tuple(f"coordinate_{n + 1}" for n in range(table.coordinates.shape[1]))
    return Drawing("vectors", title, caption, figure, ("interval", "phase", *names), rows)


def shares(found: Gathered) -> Drawing:
    """Weight against time share of each phase."""
    ordered = by_share(found.manifest.phases)
    shown, rest = ordered[:_MOST_ROWS], ordered[_MOST_ROWS:]
    figure, axes = blank(1.3 + 0.27 * (len(shown) + bool(rest)))
    labels = [f"phase {p.id}" for p in shown] + ([f"{len(rest)} others"] if rest else [])
    time = [p.time_share for p in shown] + ([sum(p.time_share for p in rest)] if rest else [])
    weight = [p.weight for p in shown] + ([sum(p.weight for p in rest)] if rest else [])
    rows = np.arange(len(labels))
    axes.barh(rows - 0.19, time, height=0.36, color=COLOURS[0], label="share of the time, S")
    axes.barh(rows + 0.19, weight, height=0.36, color=COLOURS[1], label="share of the instructions, W")
    label_rows(axes, labels)
    axes.xaxis.set_major_formatter(percents())
    axes.legend(loc="lower right")
    slowness = [(p.time_share / p.weight, p) for p in shown if p.weight > 0 and p.time_share > 0.01]
    caption = (
        "How much of the run each phase stands for, by time and by counted instructions. Where the blue bar is the "
        "longer one, the phase takes more time per instruction than the program's average (cache misses, divisions); "
        "predictions are weighted by time."
    )
    if slowness:
        ratio, worst = max(slowness, key=lambda item: item[0])
        caption += f" Phase {worst.id} takes {ratio:.1f} times the average time per instruction, the most of all shown."
    data = [(p.id, p.weight, p.time_share, p.intervals, p.spread) for p in ordered]
    head = ("phase", "weight", "time_share", "intervals", "spread_of_log_seconds_per_work")
    return Drawing("shares", "Time against instructions", caption, figure, head, data)


def restore_errors(found: Gathered) -> Drawing:
    """T_ref against the same region inside the timing run."""
    m = found.manifest
    clock = m.reference.clock
    title = "Restored regions against the run itself"
    ordered = [(p, e) for p in by_share(m.phases) if (e := p.restore_error(clock)) is not None]
    data = [
        (p.id, p.in_run.by(clock), _middle(p, clock), p.restore_error(clock), p.time_share) for p in by_share(m.phases)
    ]
    head = ("phase", "t_run_s", "t_ref_s", "restore_error", "time_share")
    if not ordered:
        reason = "No phase was restored on the reference node while this probe was built: nothing is known of it."
        return Drawing("restore", title, reason, None, head, data)
    shown = ordered[: 2 * _MOST_ROWS]
    figure, axes = blank(2.9)
    axes.axhspan(-0.03, 0.03, color="#e8f3ee", zorder=0)
    axes.axhline(0, color=INK, linewidth=0.8)
    colours = phase_colours(m.phases)
    axes.bar(range(len(shown)), [error for _, error in shown], width=0.6, color=[colours[p.id] for p, _ in shown])
    axes.set_xticks(range(len(shown)), [str(p.id) for p, _ in shown], fontsize=8)
    axes.grid(False, axis="x")
    axes.set_xlabel("phase, the one with most of the time first")
    axes.set_ylabel("T_ref / T_run - 1")
    axes.yaxis.set_major_formatter(percents())
    worst, error = max(ordered, key=lambda item: abs(item[1]))
    caption = (
        "A phase is restored from its checkpoint and timed (T_ref), and was timed inside the run before (T_run). "
        f"Apart by {percent(m.restore_error, 2)} in the median, most in phase {worst.id} ({signed_percent(error)}, "
        f"{percent(worst.time_share)} of the time). Within the green band (3 %) caches and predictors were "
        "warm enough. What remains largely cancels in predictions, which divide two restored times."
    )
    if len(ordered) > len(shown):
        caption += f" The {len(shown)} phases with most of the time are drawn; the CSV has all."
    return Drawing("restore", title, caption, figure, head, data)


def _middle(phase: PhaseRecord, clock: str) -> float:
    values = phase.restored(CRIU).by(clock)
    return float(np.median(values)) if values else math.nan


def size_and_quality(found: Gathered) -> Drawing:
    """Size of the probe against what is to be expected of it, over the number of phases kept."""
    title = "Size against quality"
    head = ("phases", "size_bytes", "coverage", "expected_error")
    data = [(t.phases, t.size_bytes, t.coverage, t.expected_error) for t in found.tradeoff]
    if not data:
        return Drawing("tradeoff", title, "No phase of this probe can be run: there is nothing to choose.", None, head)
    sizes = [t.size_bytes / 1e6 for t in found.tradeoff]
    figure, (left, right) = blank(3.1, 1, 2)
    for axes, values, name, colour in (
        (left, [t.coverage for t in found.tradeoff], "time covered", COLOURS[0]),
        (right, [t.expected_error for t in found.tradeoff], "expected error", COLOURS[5]),
    ):
        axes.plot(sizes, values, color=colour, marker="o" if len(sizes) <= 60 else None, markersize=4, linewidth=1.2)
        axes.set_xlabel("size of the probe, MB")
        axes.set_title(name)
        axes.set_ylim(0, 1.15 * max(values))
        axes.yaxis.set_major_formatter(percents())
        for t in _spread_out(found.tradeoff):
            at = (t.size_bytes / 1e6, t.coverage if axes is left else t.expected_error)
            axes.annotate(
                several(t.phases, "phase"), at, xytext=(5, -11 if axes is left else 5), textcoords="offset points",
                fontsize=8, color="#555555",
            )  # fmt: skip
    left.axhline(0.9, color=FAINT, linestyle="--", linewidth=1)
    whole = found.tradeoff[-1]
    enough = next((t for t in found.tradeoff if t.coverage >= 0.9), whole)
    caption = (
        f"What `probe trim` would leave. All {several(whole.phases, 'phase')} take {size(whole.size_bytes)} and are "
        f"expected to be off by {percent(whole.expected_error)}; the {enough.phases} with most of the time cover "
        f"{percent(enough.coverage)} of it in {size(enough.size_bytes)}, with {percent(enough.expected_error)} "
        "expected. Below the dashed line `probe run` predicts only when it is told to."
    )
    return Drawing("tradeoff", title, caption, figure, head, data)


def _spread_out(rows: Sequence[Any]) -> list[Any]:
    """Some rows to name in the picture: the first, the last, and powers of two between."""
    wanted = {1, len(rows)} | {2**k for k in range(1, 12) if 2**k < 0.75 * len(rows)}
    return [row for row in rows if row.phases in wanted]
