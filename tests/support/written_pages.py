# SPDX-License-Identifier: Apache-2.0
"""Pages of docs with tables that benches put there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Records = Sequence[dict[str, Any]]

_DOCS = Path(__file__).parents[2] / "docs"


def page_with(
    name: str,
    records: Sequence[dict[str, Any]],
    write: Callable[[Path, Sequence[dict[str, Any]]], object],
    folder: Path,
) -> tuple[Path, str]:
    """A copy of the page into which `write` has put tables of `records`, and its text: the same when done twice."""
    page = folder / name
    shutil.copy(_DOCS / name, page)
    write(page, records)
    once = page.read_text()
    write(page, records)
    assert page.read_text() == once
    return page, once
