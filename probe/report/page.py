# SPDX-License-Identifier: Apache-2.0
"""The page: one file of HTML without scripts, which loads nothing."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from probe.formats.choices import SECONDS
from probe.inspection.real_data import real_data, real_sentence
from probe.report import wording
from probe.report.drawing import Drawing, by_share
from probe.report.gathering import Gathered
from probe.report.refusals import nodes_without, phases_left_out, warnings
from probe.report.templates import templates
from probe.report.trust import checks, headline, verdict

if TYPE_CHECKING:
    from probe.report.scaling_figures import DrawnScaling

MOST_ROWS = 60
"""Rows of a table on the page; the CSV files have all."""


@dataclass(frozen=True)
class Picture:
    """A drawing as the page takes it; `source` is a data: URL, empty where there is nothing to draw."""

    name: str
    title: str
    caption: str
    source: str


def page(found: Gathered, drawings: Sequence[Drawing], scaling: DrawnScaling | None = None) -> str:
    """The HTML. Every name, argument and message in it is escaped. scaling: of an application, with its drawings."""
    environment = templates()
    environment.filters |= {
        "percent": wording.percent, "signed": wording.signed_percent, "seconds": wording.seconds, "size": wording.size,
        "plain": wording.plain, "marked": _marked,
    }  # fmt: skip
    known = checks(found)
    m = found.manifest
    parts: dict[str, Any] = {
        "found": found,
        "m": m,
        "command": wording.command_line(m.program.argv),
        "facts": _facts(found),
        "verdict": verdict(found),
        "headline": headline(known),
        "checks": known,
        "pictures": {drawing.name: picture(drawing) for drawing in drawings},
        "phases": by_share(m.phases)[:MOST_ROWS],
        "nodes": found.nodes[:MOST_ROWS],
        "differences": _differences(found),
        "without": nodes_without(found),
        "left_out": phases_left_out(found),
        "warnings": warnings(found),
        "most": MOST_ROWS,
        "scaling": scaling,
        "scaling_pictures": [picture(one) for one in scaling.drawings] if scaling else [],
    }
    text: str = environment.get_template("page.html").render(parts)
    # A lone surrogate of a file name that is no text cannot be written.
    return text.encode("utf-8", "replace").decode()


def _marked(text: str) -> Markup:
    """`text` escaped, and what stands between backquotes as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def picture(drawing: Drawing) -> Picture:
    """The drawing for a page."""
    source = ""
    if drawing.figure is not None:
        source = f"data:image/svg+xml;base64,{base64.b64encode(drawing.svg()).decode('ascii')}"
    return Picture(drawing.name, drawing.title, drawing.caption, source)


def _facts(found: Gathered) -> list[tuple[str, str]]:
    """What this probe is."""
    m, node, tracing = found.manifest, found.manifest.reference_node, found.manifest.tracing
    by_time = tracing.unit == SECONDS
    length = f"{tracing.interval * 1e3:g} ms" if by_time else f"{tracing.interval / 1e6:g} million instructions"
    runs = len(m.reference.runs)
    kept = f"{wording.size(found.size_bytes)}; its raw checkpoints {wording.size(m.raw_bytes)}"
    facts = [
        ("program", m.program.executable),
        ("run in", m.program.cwd),
        ("run time, ET_ref", f"{wording.seconds(m.reference.seconds)} ({m.reference.clock} time, from {runs} runs)"),
        ("reference node", f"{node.name}: {node.cpu}, {node.cores} cores, Linux {node.kernel}, load {node.load}"),
        ("built with", f"{tracing.tracer} tracer, intervals of {length}, C library held to {m.program.isa}, seed "
            f"{m.selection.seed}"),
        ("intervals", f"{m.timing.intervals:,}, in {wording.several(len(m.phases), 'phase')}"
            + (f" left of {m.trimmed_from}" if m.trimmed_from else "")),
        ("CPU features", " ".join(m.program.cpu_features) or "those of every x86-64 processor"),
        ("size", kept),
        ("data", real_sentence(real_data(m))),
        ("id", m.id),
    ]  # fmt: skip
    return [(name, wording.plain(text, 600)) for name, text in facts]


def _differences(found: Gathered) -> dict[str, float]:
    """Predicted over measured, minus one, by the node's name; NaN without a measured run."""
    found_runs = {node.name: found.measured_on(node) for node in found.nodes[:MOST_ROWS]}
    return {
        node.name: node.seconds / (sum(runs) / len(runs)) - 1 if (runs := found_runs[node.name]) else math.nan
        for node in found.nodes[:MOST_ROWS]
    }
