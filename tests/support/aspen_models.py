# SPDX-License-Identifier: Apache-2.0
"""Aspen models for tests: texts written, read, and their flows."""

from __future__ import annotations

from pathlib import Path

from probe.models import syntax as s
from probe.models.expressions import Settings
from probe.models.reader import read_model
from probe.models.walk import Flow, flow_of

MODELS = Path(__file__).resolve().parents[1] / "models"
MACHINE, LULESH = MODELS / "machine.aspen", MODELS / "lulesh.aspen"


def written(folder: Path, text: str) -> Path:
    """A file in the folder with that text."""
    path = folder / "written.aspen"
    path.write_text(text)
    return path


def application(folder: Path, text: str) -> s.Application:
    """The one application of a text."""
    (found,) = read_model(written(folder, text)).applications.values()
    return found


def flow_in(folder: Path, body: str, **settings: float) -> Flow:
    """The flow of a model whose kernels (or, without any, whose main) are the given text."""
    text = body if "kernel main" in body else f"kernel main {{ {body} }}"
    return flow_of(read_model(written(folder, f"model made {{ {text} }}")), Settings(settings))


def lulesh(phase: int = 0) -> Flow:
    """One phase of LULESH's communication, or all."""
    return flow_of(read_model(LULESH), Settings({"phase": float(phase)}))
