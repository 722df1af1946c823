# SPDX-License-Identifier: Apache-2.0
"""Make phases that can be measured on this node from an open probe, with what they are restored with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from checkpoint.criu.tool import find_criu
from checkpoint.errors import CriuError, NodeUnfit, ProbeFileDamaged, ToolMissing
from checkpoint.linux import PAGE_SIZE
from checkpoint.restore.criu_restore import RestoreJob, check_privilege
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, DIRECT, PhaseRecord
from probe.node.files import NodeFiles
from probe.node.measuring import PhaseToMeasure, Restorers
from reducer.member_table import StoredFile
from reducer.output_file import storage_errors
from reducer.unpack import ProbeArchive

AUTO = "auto"
RESTORERS = (AUTO, DIRECT, CRIU)
"""Choices of --restorer."""

RESTORER_NAME = "restorer"
"""Name of the probe's member with the direct restorer."""

OWN_RESTORER = "direct-restorer"
"""Name of the prober's own one in the agent's file."""


def restorers_here(
    archive: ProbeArchive,
    folder: Path,
    wanted: str,
    *,
    own_restorer: Callable[[], bytes],
    carried_restorer: bool,
    only_recorded_calls: bool,
    touch_in_order: bool,
) -> Restorers:
    """What this user can restore with, of what is wanted. The direct restorer is put into `folder`.

    `own_restorer` gives the program of this installation, ToolMissing where it has none; that in the probe is its
    author's, and is run only where it is the same one, or with `carried_restorer`.

    Raises PrivilegeMissing, CriuError, NodeUnfit, ToolMissing where that is nothing, StorageError.
    """
    direct = criu = None
    if wanted != CRIU:
        try:
            program = _carried_restorer(archive) if carried_restorer else own_restorer()
        except (NodeUnfit, ToolMissing):
            if wanted == DIRECT or os.geteuid():
                raise
        else:
            direct = folder / "direct-restorer"
            with storage_errors("write", direct, len(program)):
                direct.write_bytes(program)
                direct.chmod(0o700)
    if wanted == CRIU or direct is None:
        check_privilege()
        criu = find_criu()
    elif wanted == AUTO and os.geteuid() == 0:
        with contextlib.suppress(CriuError, ToolMissing):
            criu = find_criu()
    return Restorers(direct, criu, only_recorded_calls, touch_in_order)


def _carried_restorer(archive: ProbeArchive) -> bytes:
    if RESTORER_NAME not in archive.data_names:
        raise NodeUnfit("the probe carries no direct restorer; leave --carried-restorer out")
    return archive.read_data(RESTORER_NAME)


def phases_here(
    archive: ProbeArchive,
    manifest: Manifest,
    folder: Path,
    restorers: Restorers,
    differing: Sequence[StoredFile],
    only: Collection[int] | None = None,
) -> list[PhaseToMeasure]:
    """The phases that can be restored (`only` these, if given), to be unpacked below `folder` when their turn comes.

    `differing`: the probe's files that this node does not have (probe/node/files.py). Raises ProbeFileDamaged.
    """
    held = [phase.id for phase in archive.phases]
    if odd := [phase.id for phase in manifest.phases if phase.can_run and phase.id not in held]:
        raise ProbeFileDamaged(f"the probe's manifest names a phase {odd[0]!r} that it does not hold; build it again")
    files = NodeFiles(archive, folder, differing)
    found: list[PhaseToMeasure] = []
    for phase in manifest.phases:
        if not phase.can_run or (only is not None and phase.id not in only):
            continue
        if phase.only_direct and restorers.direct is None:
            raise NodeUnfit(
                f"phase {phase.id}: was captured without CRIU, which cannot restore it; leave --restorer criu out"
            )
        written = folder / f"written-{phase.id}"
        job = RestoreJob(
            phase=phase.id,
            images=folder / f"phase-{phase.id}",
            outputs=manifest.program.outputs,
            folders=(manifest.program.cwd,),
            binds=files.binds(),
            written=files.private_copies(manifest.files.private, phase.id, written),
            warm_event=phase.events.warm,
            start_event=phase.events.start,
            end_event=phase.events.end,
            expected_seconds=phase.expected_seconds,
            threads=manifest.threads,
        )
        direct = restorers.direct is not None and (phase.only_direct or not (phase.only_criu and restorers.criu))
        found.append(
            PhaseToMeasure(
                job,
                DIRECT if direct else CRIU,
                fall_back=restorers.criu is not None and not phase.only_direct,
                unpack=_unpacker(archive, manifest, phase, files, written),
                size=phase.checkpoint.kept_pages * PAGE_SIZE,
            )
        )
    return found


def _unpacker(
    archive: ProbeArchive, manifest: Manifest, phase: PhaseRecord, files: NodeFiles, written: Path
) -> Callable[[Path], None]:
    def unpack(folder: Path) -> None:
        files.copy_private_files(manifest.files.private, phase.id, written)
        archive.extract_phase(phase.id, folder)

    return unpack
