# SPDX-License-Identifier: Apache-2.0
"""A report on data-intensive applications over numbers of nodes, from files of `probe simulate -P --json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from checkpoint.errors import ProbeError
from checkpoint.foreign_file import read_foreign_json
from probe.dataflow.nodes_figure import DrawnNodes, drawn_nodes, nodes_figure
from probe.progress import Display, Silent
from probe.report.drawing import Drawing, style
from probe.report.figure_files import write_drawings, write_file
from probe.report.page import picture
from probe.report.templates import templates
from probe.report.writing import Report
from reducer.output_file import check_target

SUFFIX = ".json"
_COMMAND = "probe simulate -P --json"


def write_nodes_report(
    predictions: Sequence[Path], *, page: Path | None = None, figures: Path | None = None,
    display: Display | None = None,
) -> Report:  # fmt: skip
    """Draw predictions, a figure each. Files have mode 0600. Raises ProbeError for other files, StorageError."""
    if page is not None:
        check_target(page)
    with (display or Silent()).stage("draw") as report, style():
        shown = [_read(path) for path in predictions]
        drawings = [nodes_figure(one, _name(number)) for number, one in enumerate(shown)]
        files = write_drawings(drawings, figures.absolute()) if figures is not None else []
        if page is not None:
            text = _page(shown, drawings)
            write_file(page.absolute(), lambda out: out.write(text.encode("utf-8", "replace")))
        report(1.0)
    return Report(page, tuple(files), len({row.nodes for one in shown for row in one.rows}), 0)


def _name(number: int) -> str:
    return f"nodes-{number + 1}" if number else "nodes"


def _read(path: Path) -> DrawnNodes:
    value = read_foreign_json(path, f"give the file that `{_COMMAND}` printed")
    try:
        return drawn_nodes(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(f"{path}: not what `{_COMMAND}` prints ({error!r}); simulate again") from error


def _page(shown: Sequence[DrawnNodes], drawings: Sequence[Drawing]) -> str:
    names = ", ".join(dict.fromkeys(one.application for one in shown))
    template = templates().get_template("nodes.html")
    return template.render(names=names, predictions=shown, pictures=map(picture, drawings))
