# SPDX-License-Identifier: Apache-2.0
"""The predictions that schedulers may act on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import StorageError
from probe.store.opening import Store
from probe.store.reading import all_probes, candidates
from probe.store.records import Candidate, StoredProbe


@dataclass(frozen=True)
class Predicted:
    """A probe, and its nodes with the newest prediction of each, the fastest first.

    stale: how many were left out. unfit: likewise, nodes with fewer processors than its threads need.
    """

    probe: StoredProbe
    nodes: tuple[Candidate, ...]
    stale: int
    unfit: int = 0


def usable(store: Store, probes: Sequence[StoredProbe] = ()) -> list[Predicted]:
    """For `probes`, or all of the store, without stale predictions, and without nodes that cannot run them."""
    found = []
    for probe in probes or all_probes(store):
        nodes = candidates(store, probe)
        kept = tuple(node for node in nodes if not node.unusable)
        unfit = sum(bool(node.unfit) for node in nodes)
        found.append(Predicted(probe, kept, len(nodes) - len(kept) - unfit, unfit))
    return found


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` in one step: whoever reads it finds the old or the new text. Raises StorageError."""
    try:
        number, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; what was there before is still there") from error
