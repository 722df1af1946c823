# SPDX-License-Identifier: Apache-2.0
"""Files of figures: pictures, their data as CSV, and how a file takes its place in one step."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reducer.output_file import check_target, create_file, storage_errors

if TYPE_CHECKING:
    from probe.report.drawing import Drawing


def as_text(drawing: Drawing, out: IO[bytes]) -> None:
    """Write the figure's data as CSV."""
    text = io.TextIOWrapper(out, encoding="utf-8", errors="replace", newline="")
    drawing.write_csv(text)
    # The file is closed by whoever opened it.
    text.detach()


def as_png(drawing: Drawing, out: IO[bytes]) -> None:
    """Write the picture as PNG."""
    out.write(drawing.png())


def as_svg(drawing: Drawing, out: IO[bytes]) -> None:
    """Write the picture as SVG."""
    out.write(drawing.svg())


def write_drawings(drawings: Sequence[Drawing], folder: Path, form: str = "png") -> list[Path]:
    """Write each drawing's data, and its picture as `form` (png or svg), into `folder`. Raises StorageError."""
    with storage_errors("write", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = []
    for drawing in drawings:
        written.append(write_file(folder / f"{drawing.name}.csv", partial(as_text, drawing)))
        if drawing.figure is not None:
            draw = partial(as_png if form == "png" else as_svg, drawing)
            written.append(write_file(folder / f"{drawing.name}.{form}", draw))
    return written


def write_file(path: Path, fill: Callable[[IO[bytes]], Any]) -> Path:
    """Replace `path` in one step by a file of mode 0600 that `fill` writes."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    check_target(path)
    with storage_errors("write", path), ExitStack() as undo:
        part.unlink(missing_ok=True)
        with create_file(part, undo) as out:
            fill(out)
        part.replace(path)
        undo.pop_all()
    return path
