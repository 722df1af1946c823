# SPDX-License-Identifier: Apache-2.0
"""Everything that a report is made from, read and checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint.errors import NotInStore, ProbeError
from probe.formats.interval_table import IntervalTable, read_intervals
from probe.formats.manifest import Manifest
from probe.inspection.trimming import Tradeoff, tradeoff
from probe.report.results import NodeResult, NodeWithout, read_results
from reducer.unpack import open_probe

if TYPE_CHECKING:
    from probe.store.opening import Store
    from probe.store.records import StoredProbe


@dataclass(frozen=True)
class Gathered:
    """A probe, and what is known of its program on other nodes.

    probe: name of its file. intervals: None where the probe does not hold them. tradeoff: what fewer phases would give.
    nodes: predictions, the fastest first. without: nodes that gave none. measured: seconds of full runs by the node's
    name; of nodes without a prediction, too.
    """

    probe: str
    size_bytes: int
    manifest: Manifest
    intervals: IntervalTable | None = field(repr=False)
    tradeoff: tuple[Tradeoff, ...] = field(repr=False)
    nodes: tuple[NodeResult, ...] = field(repr=False)
    without: tuple[NodeWithout, ...] = ()
    measured: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def measured_on(self, node: NodeResult) -> tuple[float, ...]:
        """Full runs on this node, by the name it was asked for or the one it has."""
        return self.measured.get(node.name, ()) or self.measured.get(node.host, ())


def gather(
    probe: Path,
    results: Sequence[Path],
    *,
    measured: Mapping[str, Sequence[float]] | None = None,
    store: str | None = None,
) -> Gathered:
    """Read the probe, the results and, from `store` (its URL), observed run times of the probe's program.

    Raises ProbeError for results of another probe, ProbeFileDamaged, StorageError, StoreUnusable.
    """
    with open_probe(probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
        nodes, without = read_results(results, manifest, str(probe))
        archive.verify()
        intervals = read_intervals(archive, manifest, str(probe))
        size = archive.size_bytes
    runs = {name: list(seconds) for name, seconds in (measured or {}).items()}
    if unknown := sorted(runs.keys() - {name for node in nodes for name in (node.name, node.host)}):
        raise ProbeError(
            f"--measured {unknown[0]}: no result of this node; it has {_listed([node.name for node in nodes])}"
        )
    if store is not None:
        for name, seconds in _observed(store, probe, manifest).items():
            runs.setdefault(name, []).extend(seconds)
    return Gathered(
        probe.name,
        size,
        manifest,
        intervals,
        tuple(tradeoff(probe)),
        tuple(nodes),
        tuple(without),
        {name: tuple(seconds) for name, seconds in runs.items()},
    )


def _observed(url: str, path: Path, manifest: Manifest) -> dict[str, list[float]]:
    """Observed run times of the program with this input, by node; those whose input is unknown count, too."""
    from probe.store.importing import input_checksum
    from probe.store.observing import observed
    from probe.store.opening import open_store

    found: dict[str, list[float]] = {}
    with open_store(url, create=False) as opened:
        for inputs in (input_checksum(path), ""):
            for stored in _entries(opened, manifest, inputs):
                for run in observed(opened, probe=stored):
                    found.setdefault(run.node, []).append(run.seconds)
    return found


def _entries(store: Store, manifest: Manifest, inputs: str) -> Iterator[StoredProbe]:
    """The program's entry, and that of results without a number of threads, which were stored as of one thread.

    Probes of more threads predict wall times alone: with others among its predictions, the entry is of one thread.
    """
    from probe.store.reading import find_probe, history
    from probe.store.records import probe_key

    for threads in sorted({manifest.threads, 1}, reverse=True):
        try:
            stored = find_probe(store, probe_key(manifest.program.argv, inputs, threads))
        except NotInStore:
            continue
        if threads == manifest.threads or {made.clock for made in history(store, probe=stored)} == {"wall"}:
            yield stored


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") if names else "none"
