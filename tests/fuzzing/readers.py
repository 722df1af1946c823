# SPDX-License-Identifier: Apache-2.0
"""Every reader of bytes that others wrote. Who adds one adds it here (docs/development.md)."""

from __future__ import annotations

from fuzzing import applications, archives, blocks, checkpoints, formats, models, nodes, recordings, results
from fuzzing.reader import Reader

READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        *applications.READERS, *archives.READERS, *blocks.READERS, *formats.READERS, *checkpoints.READERS,
        *models.READERS, *nodes.READERS, *recordings.READERS, *results.READERS,
    )
}  # fmt: skip
