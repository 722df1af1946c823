# SPDX-License-Identifier: Apache-2.0
"""A report from beginning to end: read, draw, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.progress import Display, Silent
from probe.report.figure_files import as_png, as_text, write_file
from probe.report.gathering import Gathered, gather
from reducer.output_file import check_target, storage_errors

if TYPE_CHECKING:
    from probe.report.scaling_figures import DrawnScaling

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Report:
    """What was written: the page (None if none was asked for), and the files of the figures. `nodes` are in it,
    `without` of them without a prediction."""

    page: Path | None
    files: tuple[Path, ...]
    nodes: int
    without: int

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md says of `probe report --json`."""
        return {
            "format_version": FORMAT_VERSION,
            "page": str(self.page) if self.page is not None else None,
            "files": [str(path) for path in self.files],
            "nodes": self.nodes,
            "without_prediction": self.without,
        }


def write_report(
    probe: Path | str,
    results: Sequence[Path | str] = (),
    *,
    page: Path | str | None = None,
    figures: Path | str | None = None,
    measured: Mapping[str, Sequence[float]] | None = None,
    store: str | None = None,
    scaling: Path | str | None = None,
    display: Display | None = None,
) -> Report:
    """Write the page about the probe at `probe` to `page`, and PNG and CSV of each figure into the folder `figures`.

    `results`: files of `probe run --json`, of this probe. `measured`: seconds of full runs by the node's name.
    `store`: URL of a store whose observed run times of the program count as measured, too. `scaling`: description of a
    parallel application, whose figures are drawn from the store, too. Files have mode 0600, since arguments may be
    secret. Raises ProbeError for results of another probe, ProbeFileDamaged, StorageError,
    StoreUnusable.
    """
    target = Path(page).absolute() if page is not None else None
    if target is not None:
        check_target(target)
    shown = display or Silent()
    with shown.stage("read") as report:
        found = gather(Path(probe), [Path(one) for one in results], measured=measured, store=store)
        report(1.0)
    with shown.stage("draw") as report:
        folder = Path(figures).absolute() if figures is not None else None
        written = _draw(found, target, folder, Path(scaling) if scaling is not None else None, store)
        report(1.0)
    return Report(target, tuple(written), len(found.nodes), len(found.without))


def _draw(
    found: Gathered, target: Path | None, folder: Path | None, application: Path | None, store: str | None
) -> list[Path]:
    from probe.report.drawing import style
    from probe.report.node_figures import node_figures
    from probe.report.page import page
    from probe.report.run_figures import run_figures

    written = []
    with style():
        drawings = [*run_figures(found), *node_figures(found)]
        scaling = _scaling(application, store) if application is not None else None
        if folder is not None:
            with storage_errors("write", folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for drawing in (*drawings, *(scaling.drawings if scaling else ())):
                written.append(write_file(folder / f"{drawing.name}.csv", partial(as_text, drawing)))
                if drawing.figure is not None:
                    written.append(write_file(folder / f"{drawing.name}.png", partial(as_png, drawing)))
        if target is not None:
            text = page(found, drawings, scaling)
            write_file(target, lambda out: out.write(text.encode()))
    return written


def _scaling(application: Path, store: str | None) -> DrawnScaling:
    """Figures of the application, from the store of that URL, else from the usual one."""
    from probe.applications.application import read_application
    from probe.report.scaling_report import draw_scaling
    from probe.store.opening import open_store

    described = read_application(application)
    with open_store(store, create=False) as opened:
        return draw_scaling(opened, described, {})
