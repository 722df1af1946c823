# SPDX-License-Identifier: Apache-2.0
"""Build a probe of an MPI program: of each cluster's representative, alone, an ordinary probe."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from checkpoint import strict_json
from checkpoint.errors import ProbeFileDamaged, ProgramTooShort, StorageError
from checkpoint.foreign_file import finite, read_foreign
from probe.mpi.probes.clusters import Cluster, clusters_of, summary_of
from probe.mpi.probes.verifying import verified
from probe.mpi.recording import DESCRIPTION, Recording, read_recording
from probe.mpi.replay import alone, left_files
from probe.mpi.trace import read_calls
from probe.pipeline.build import build
from probe.pipeline.options import BuildOptions
from probe.progress import Display
from reducer.output_file import make_folder

CLUSTERS = "clusters.json"
VERSION = 1

MOST_UNPROBED = 0.05
"""Share of the computing of all ranks that may be that of ranks which are too short for probes, as a master's is."""


@dataclass(frozen=True)
class MpiProbe:
    """A probe of an MPI program: a folder with the recorded calls, and a probe for each cluster of ranks."""

    recording: Recording
    clusters: tuple[Cluster, ...]

    def probe_of(self, cluster: Cluster) -> Path:
        """The probe of its representative."""
        return self.recording.folder / probe_name(cluster)


def probe_name(cluster: Cluster) -> str:
    """Name of the probe of its representative."""
    return f"rank-{cluster.representative}.probe"


def build_mpi(
    recording: Recording,
    output: Path,
    *,
    options: BuildOptions | None = None,
    display: Callable[[str], Display | None] = lambda _: None,
) -> MpiProbe:
    """Replay the representative of each cluster, build a probe of it, and write all into the new folder `output`.

    Another member of each cluster is replayed, too: it says how well the representative stands for it. display: of one
    build, by the rank's name. A rank with hardly any computing needs no probe. The folder goes away on failure. Raises
    what `replay` and `probe.build` raise.
    """
    chosen = options or BuildOptions()
    ranks = [summary_of(read_calls(recording.folder, run.rank)) for run in recording.ranks]
    clusters = clusters_of(recording, ranks)
    # A rank that does not repeat itself is told in seconds, not after a build.
    clusters = [verified(recording, one, ranks, chosen.makes) for one in clusters]
    make_folder(output)
    try:
        for number, one in enumerate(clusters):
            started = alone(recording, one.representative)
            left = left_files(recording, started.run, chosen.makes)
            try:
                build(
                    started.command, output / probe_name(one), options=replace(chosen, makes=left),
                    cwd=started.run.folder, env=started.environment, expected=True,
                    display=display(f"rank {one.representative}"),
                )  # fmt: skip
            except ProgramTooShort:
                clusters[number] = replace(one, probed=False)
                if _unprobed(clusters) > MOST_UNPROBED:
                    raise
        for path in (recording.folder / DESCRIPTION, *sorted(recording.folder.glob("calls.*"))):
            shutil.copy(path, output)
        (output / CLUSTERS).write_text(
            strict_json.dumps({"format_version": VERSION, "clusters": [asdict(one) for one in clusters]}, indent=1)
        )
    except OSError as error:
        raise StorageError(f"{output}: cannot be written ({error.strerror})") from error
    finally:
        with suppress(FileNotFoundError):
            if not (output / CLUSTERS).exists():
                shutil.rmtree(output)
    return read_mpi_probe(output)


def _unprobed(clusters: Sequence[Cluster]) -> float:
    """Share of all computing that ranks without a probe have; 1 where none has a probe."""
    computing = [one.computing * len(one.ranks) for one in clusters]
    without = sum(seconds for seconds, one in zip(computing, clusters, strict=True) if not one.probed)
    return without / sum(computing) if any(one.probed for one in clusters) and sum(computing) > 0 else 1.0


def read_mpi_probe(folder: Path) -> MpiProbe:
    """The probe in a folder of `build_mpi`. Raises ProbeFileDamaged and StorageError."""
    recording = read_recording(folder)
    path = folder / CLUSTERS
    if not path.exists():
        raise ProbeFileDamaged(f"{folder}: a recording without probes; make them with `probe mpi build`")
    try:
        said = strict_json.loads(read_foreign(path))
    except ValueError as error:
        raise ProbeFileDamaged(f"{path}: is not JSON ({error})") from error
    try:
        if said["format_version"] != VERSION:
            raise ValueError(f"version {said['format_version']}")
        clusters = tuple(_cluster(one) for one in said["clusters"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ProbeFileDamaged(f"{path}: describes no clusters ({str(error)[:80]})") from error
    if sorted(rank for one in clusters for rank in one.ranks) != list(range(len(recording.ranks))):
        raise ProbeFileDamaged(f"{path}: its clusters are not those of {len(recording.ranks)} ranks")
    if not any(one.probed for one in clusters):
        raise ProbeFileDamaged(f"{path}: has no probe of any cluster")
    made = MpiProbe(recording, clusters)
    for one in clusters:
        if one.probed and not made.probe_of(one).is_file():
            raise ProbeFileDamaged(f"{made.probe_of(one)}: is missing")
    return made


def _cluster(said: dict[str, Any]) -> Cluster:
    ranks = said["ranks"]
    numbers = [said["representative"], *ranks]
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers) or numbers[0] not in ranks:
        raise ValueError("a cluster without its representative")
    member, error = said["verified"], said["error"]
    if (member is None) != (error is None) or (member is not None and (type(member) is not int or member not in ranks)):
        raise ValueError("a cluster verified by another's rank")
    probed = said.get("probed", True)
    if not isinstance(probed, bool):
        raise ValueError("a cluster that may have a probe")
    differing = said.get("differing", 0)
    if type(differing) is not int or differing < 0:
        raise ValueError("messages that differ, but are not counted")
    if finite(said["computing"]) < 0:
        raise ValueError("computing of less than nothing")
    return Cluster(
        numbers[0], tuple(ranks), finite(said["computing"]), finite(said["spread"]), member,
        None if error is None else finite(error), probed, differing,
    )  # fmt: skip
