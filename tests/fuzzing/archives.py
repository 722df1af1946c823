# SPDX-License-Identifier: Apache-2.0
"""Readers of a probe file: damaged, forged in its table, forged in its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from made_probe import made_manifest, made_probe
from small_archive import make_checkpoint

from checkpoint.errors import ProbeError
from checkpoint.restore.criu_restore import RegionTime
from fuzzing.mutation import as_json, damaged, forged
from fuzzing.reader import Reader
from probe.candidates.result import predict_from
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU
from probe.inspection.description import show
from probe.inspection.explanation import explain
from probe.inspection.trimming import tradeoff
from probe.node.measuring import MeasuredPhase
from reducer.archive import ContainedFile, PhaseCheckpoint, write_probe
from reducer.member_table import HEADER, HEADER_SIZE
from reducer.unpack import open_probe


def _small(folder: Path) -> Sequence[bytes]:
    (folder / "tool").write_bytes(b"#!tool" * 9)
    first = make_checkpoint(folder / "first", [1, 0, 2, 3], mm=b"memory map")
    second = make_checkpoint(folder / "second", [3, 4, 0, 1])
    path = folder / "a.probe"
    write_probe(
            path, {"program": "tool", "et_ref_seconds": 1.5}, [PhaseCheckpoint(5, first), PhaseCheckpoint(2, second)],
            [
                ContainedFile("/usr/bin/tool", folder / "tool", 0o100755, "program"),
                ContainedFile("/opt/tool", folder / "tool", 0o100644, "input"),
            ],
            {"profile.json": b"[1,2,3]"},
    )  # fmt: skip
    return [path.read_bytes()]


def _unpack(data: bytes, folder: Path) -> dict[str, bytes]:
    path, found = folder / "a.probe", {}
    path.write_bytes(data)
    with open_probe(path, folder) as probe:
        found["manifest"] = json.dumps(probe.manifest).encode()
        for phase in probe.phases:
            target = folder / f"phase-{phase.id}"
            probe.extract_phase(phase.id, target)
            found |= {f"{phase.id}/{image.name}": image.read_bytes() for image in target.iterdir()}
        for file in probe.files:
            probe.extract_file(file.sha256, folder / "file")
            found[f"file {file.path} {file.mode:o} {file.purpose}"] = (folder / "file").read_bytes()
            (folder / "file").unlink()
        for name in probe.data_names:
            found[f"data {name}"] = probe.read_data(name)
        probe.verify()
    escaped = {p.name for p in folder.iterdir()} - {"a.probe", *(f"phase-{phase.id}" for phase in probe.phases)}
    assert not escaped, f"written beside its folder: {escaped}"
    return found


def _sealed(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """With the front's checksum right again, as an attacker makes it; members' own checksums too, often."""
    if len(data) < HEADER_SIZE:
        return damaged(choose, data, others)
    _, version, size, _ = HEADER.unpack_from(data)
    text, members = data[HEADER_SIZE : HEADER_SIZE + size], data[HEADER_SIZE + size :]
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return damaged(choose, data, others)
    if choose.random() < 0.4:
        members = damaged(choose, members)
        _mend(document, members)
    if choose.random() < 0.7:
        document = forged(choose, document)
    text = as_json(document) if choose.random() < 0.95 else damaged(choose, text)
    head = HEADER.pack(data[:8], version, len(text), HEADER_SIZE + len(text) + len(members))
    return head + hashlib.sha256(head + text).digest() + text + members


def _mend(document: Any, members: bytes) -> None:
    at = 0
    try:
        for member in document["members"]:
            stored = members[at : at + member["stored_size"]]
            at += len(stored)
            member["sha256"] = hashlib.sha256(stored).hexdigest()
    except (KeyError, TypeError):
        pass


def _manifests(folder: Path) -> Sequence[bytes]:
    manifest, table = made_manifest(4, 50, warnings=("one",), program__outputs=("/x",))
    phases = tuple(
        replace(
            phase, direct=replace(phase.criu, kernel=(0.001, 0.002, 0.001)),
            in_run=replace(phase.in_run, kernel=0.1, kernel_error=0.01),
        )
        for phase in manifest.phases
    )  # fmt: skip
    return [made_probe(folder / "made.probe", replace(manifest, phases=phases), table).read_bytes()]


def _forged_manifest(choose: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    _, version, size, _ = HEADER.unpack_from(data)
    document = json.loads(data[HEADER_SIZE : HEADER_SIZE + size])
    holder = next(key for key, value in document.items() if isinstance(value, dict) and "manifest_version" in value)
    document[holder] = forged(choose, document[holder])
    text, members = as_json(document), data[HEADER_SIZE + size :]
    head = HEADER.pack(data[:8], version, len(text), HEADER_SIZE + len(text) + len(members))
    return head + hashlib.sha256(head + text).digest() + text + members


def _describe(data: bytes, folder: Path) -> str:
    path = folder / "a.probe"
    path.write_bytes(data)
    said: list[Any] = [show(path), [vars(row) for row in tradeoff(path)], explain(path)]
    with open_probe(path, folder) as archive:
        manifest = Manifest.from_json(archive.manifest)
    time = RegionTime(0.05, 0.05, 0.05, 0.01)
    found = predict_from(manifest, [MeasuredPhase(p.id, (time,) * 3, restorer=CRIU) for p in manifest.phases])
    return json.dumps([said, found.to_json()], allow_nan=False)


READERS = (
    Reader("probe-damaged", _small, _unpack, (ProbeError,), exact=True),
    Reader("probe-forged", _small, _unpack, (ProbeError,), change=_sealed),
    Reader("manifest", _manifests, _describe, (ProbeError,), change=_forged_manifest),
)
