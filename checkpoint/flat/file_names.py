# SPDX-License-Identifier: Apache-2.0
"""Name the files that stand beside a flat image, among a checkpoint's images."""

from __future__ import annotations

from pathlib import Path

PACKED = "pages.packed"
"""In place of a pages image: the numbers of its pages (reducer/packed_image.py)."""

SHARED_PAGES = "pages-shared.img"
"""Pages of shared memory."""


def deleted_name(number: int) -> str:
    """Name, among a checkpoint's images, of the contents of the deleted file with this number."""
    return f"gone-{number}.img"


def is_deleted_name(name: str) -> bool:
    """Whether this is such a name, or that of the pages of shared memory."""
    return name == Path(name).name and ((name.startswith("gone-") and name.endswith(".img")) or name == SHARED_PAGES)
