# SPDX-License-Identifier: Apache-2.0
"""Reports in tests: made, read tag by tag, and looked at in a browser."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_probe import made_manifest, made_probe

from probe.formats.manifest import Manifest
from probe.report.gathering import Gathered

FIGURES = {
    "timeline", "vectors", "shares", "restore", "tradeoff", "predictions", "phase-times", "error-budget", "estimators",
}  # fmt: skip

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


@pytest.fixture(scope="module", autouse=True)
def own_fonts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where matplotlib keeps its list of fonts, which it asks for when it is imported: so not above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("fonts")))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A probe of six phases with its table of intervals, and its manifest."""
    manifest, table = made_manifest(6, 240)
    return made_probe(tmp_path_factory.mktemp("made") / "solver.probe", manifest, table), manifest


def written(folder: Path, value: Any, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value))
    return path


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(path: Path) -> str:
    """Text of a page, one space between words."""
    return " ".join(Tags(path.read_text()).text.split())


def pixels(picture: Path, colour: str) -> int:
    from matplotlib.image import imread

    wanted = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)])
    return int((np.abs(np.round(imread(picture)[:, :, :3] * 255) - wanted) < 3).all(axis=2).sum())


def drawings(found: Gathered) -> list[Any]:
    from probe.report.node_figures import node_figures
    from probe.report.run_figures import run_figures

    return [*run_figures(found), *node_figures(found)]


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))
