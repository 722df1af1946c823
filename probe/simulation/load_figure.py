# SPDX-License-Identifier: Apache-2.0
"""Picture of a network's load: bytes over each link, and how many links the bytes cross."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from matplotlib.axes import Axes

from probe.report.drawing import COLOURS, INK, Drawing, blank, style
from probe.simulation.traffic import Traffic

_HEIGHT = 3.4


def load_figure(traffic: Traffic, network: str) -> Drawing:
    """The drawing; its data are the bytes of every link that was used."""
    title = f"Load of links on {network}"
    loads = sorted(traffic.loads.values(), reverse=True)
    if not loads:
        return Drawing("link-load", title, "No message crosses a link.", None)
    mean = sum(loads) / len(loads)
    with style():
        figure, (links, crossing) = blank(_HEIGHT, 1, 2, width_ratios=(3, 2))
        places, heights = _steps(loads)
        links.step(places, heights, where="post", color=COLOURS[0])
        links.axhline(mean, color=INK, linewidth=0.8, linestyle=":", label=f"mean {mean:.4g}")
        links.set_ylim(bottom=0)
        links.set_xlabel("links used, the busiest first")
        links.set_ylabel("bytes")
        links.set_title(title)
        links.legend()
        _crossing(crossing, traffic.crossing)
    rows = [(start, end, size) for (start, end), size in sorted(traffic.loads.items(), key=lambda item: -item[1])]
    caption = f"{len(loads)} links carry bytes; the busiest carries {loads[0] / mean:.2f} times the mean."
    return Drawing("link-load", title, caption, figure, ("from", "to", "bytes"), rows)


def _steps(loads: list[int]) -> tuple[list[int], list[int]]:
    """Where the sorted loads change: thousands of equal links are one step."""
    places, heights, at = [0], [], 0
    for load, equal in groupby(loads):
        at += sum(1 for _ in equal)
        places.append(at)
        heights.append(load)
    return places, [*heights, heights[-1]]


def _crossing(axes: Axes, crossing: Counter[int]) -> None:
    counts = sorted(crossing)
    total = sum(crossing.values())
    shares = [crossing[count] / total if total else 0.0 for count in counts]
    axes.bar([str(count) for count in counts], shares, color=COLOURS[2])
    axes.set_xlabel("links crossed")
    axes.set_ylabel("share of the bytes")
