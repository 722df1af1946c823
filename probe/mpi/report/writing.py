# SPDX-License-Identifier: Apache-2.0
"""`probe mpi report` from beginning to end: simulated, analysed, drawn, written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.mpi.recording import Recording
from probe.mpi.report.analysis import Analysis, analyse
from probe.mpi.report.figures import figures_of
from probe.mpi.simulate import Where
from probe.progress import Display, Silent
from probe.report.drawing import Drawing, style
from probe.report.figure_files import write_drawings, write_file
from probe.report.page import picture
from probe.report.templates import templates
from reducer.output_file import check_target


@dataclass(frozen=True)
class MpiReport:
    """What was written: the page (None if none was asked for), and the files of the figures."""

    page: Path | None
    files: tuple[Path, ...]
    analysis: Analysis

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe mpi report --json`, without its version."""
        page = str(self.page) if self.page is not None else None
        return {"page": page, "files": [str(path) for path in self.files], **self.analysis.to_json()}


def write_mpi_report(
    recording: Recording,
    where: Where,
    *,
    page: Path | None = None,
    figures: Path | None = None,
    scale: float = 1.0,
    limit: float = 3600.0,
    display: Display | None = None,
) -> MpiReport:
    """Simulate a recording on a network and on changed ones, and draw that: a page, and a folder of PNG and CSV.

    scale: times that computing takes. limit: seconds of each simulation. Files have mode 0600. Raises what `simulate`
    raises, and StorageError.
    """
    if page is not None:
        check_target(page)
    shown = display or Silent()
    found = analyse(recording, where, scale=scale, limit=limit, display=shown)
    with shown.stage("draw") as report, style():
        drawings = figures_of(found)
        files = write_drawings(drawings, figures.absolute()) if figures is not None else []
        if page is not None:
            text = _page(found, drawings)
            write_file(page.absolute(), lambda out: out.write(text.encode("utf-8", "replace")))
        report(1.0)
    return MpiReport(page, tuple(files), found)


def _page(found: Analysis, drawings: list[Drawing]) -> str:
    template = templates().get_template("mpi.html")
    return template.render(found=found, recording=found.recording, pictures=map(picture, drawings))
