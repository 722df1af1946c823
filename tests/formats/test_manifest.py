# SPDX-License-Identifier: Apache-2.0
"""Manifests of earlier and later versions are read, those that no build writes are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_probe import made_manifest, made_probe

from checkpoint.errors import ProbeFileDamaged
from checkpoint.restore.criu_restore import RegionTime
from probe.candidates.result import RunResult, predict_from
from probe.formats.manifest import MANIFEST_VERSION, Manifest
from probe.formats.phase_record import CRIU, DIRECT
from probe.inspection.description import show
from probe.inspection.trimming import trim
from probe.node.measuring import MeasuredPhase
from reducer.unpack import open_probe

VERSION_1 = Path(__file__).parents[1] / "recorded" / "manifest-1.json"
"""A manifest that version 0.1 wrote, and what that version printed of it: `show --json`, `run --json`."""

RATIOS = RegionTime(1.3, 1.25, 0.01, 0.02, 0.1, 3)
"""The made-up times of that run, as multiples of those on the reference node where they are of the region."""


def recorded() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(VERSION_1.read_text())
    return value


def said(**more: Any) -> dict[str, Any]:
    """What a file says of a manifest with everything in it that can be."""
    manifest, _ = made_manifest(2, 9, **more)
    value: dict[str, Any] = json.loads(json.dumps(manifest.to_json()))
    value["files"] = {
        "private": [{"phase": 0, "path": "/a", "sha256": "0" * 64, "mode": 0o600}],
        "external": [{"path": "/b", "sha256": "1" * 64, "size": 2, "mode": 0o644}],
    }
    value["warmup_trials"] = [{"warmup": 1, "relative": 1.0, "error": 0.01, "against_run": 1.0}]
    return value


def put(value: Any, place: str, new: Any) -> None:
    """Give `value` another entry at `place`, such as phases.0.weight."""
    *outer, last = place.split(".")
    for key in outer:
        value = value[int(key) if isinstance(value, list) else key]
    value[int(last) if isinstance(value, list) else last] = new


# -- versions


def test_what_later_versions_add_is_ignored() -> None:
    value = said()
    known = Manifest.from_json(value)
    places: list[Any] = [value]
    for place in places:
        if isinstance(place, dict):
            places += place.values()
            place["said_by_a_later_version"] = {"anything": [1]}
        elif isinstance(place, list):
            places += place
    assert Manifest.from_json(value) == known


@pytest.mark.parametrize("version", [999, 0, True, 1.0, "1", None, [1]])
def test_another_version_is_named(version: Any) -> None:
    with pytest.raises(ProbeFileDamaged, match=r"version .*; this program reads 1 and 2"):
        Manifest.from_json({**said(), "manifest_version": version})


def test_version_1_says_the_same(tmp_path: Path) -> None:
    old = recorded()
    manifest = Manifest.from_json(old["manifest"])
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    assert manifest.id == old["show"]["id"]
    shown = show(made_probe(tmp_path / "new.probe", manifest))
    assert {**shown, "size_bytes": 0} == {**old["show"], "size_bytes": 0}


def test_results_of_version_1_are_the_same() -> None:
    old = recorded()
    manifest = Manifest.from_json(old["manifest"])
    measured = []
    for phase in manifest.phases:
        restorer = DIRECT if phase.direct.wall else CRIU
        ref = phase.restored(restorer)
        times = [
            RegionTime(RATIOS.wall * w, RATIOS.cpu * c, RATIOS.warm, RATIOS.restore, 0.1 * c, RATIOS.faults)
            for w, c in zip(ref.wall, ref.cpu, strict=True)
        ]
        measured.append(MeasuredPhase(phase.id, tuple(times), restorer=restorer))
    result = RunResult("a.probe", manifest, old["run"]["node"], tuple(measured), predict_from(manifest, measured))
    assert json.loads(json.dumps(result.to_json())) == old["run"]


def test_an_old_probe_is_trimmed_to_a_new_one(tmp_path: Path) -> None:
    old = recorded()
    manifest = Manifest.from_json(old["manifest"])

    class AsWritten:
        phases = manifest.phases
        to_json = staticmethod(lambda: old["manifest"])

    path = made_probe(tmp_path / "old.probe", AsWritten())  # type: ignore[arg-type]
    trimmed = trim(path, tmp_path / "small.probe", phases=3)
    with open_probe(trimmed.path) as archive:
        assert archive.manifest["manifest_version"] == MANIFEST_VERSION
        back = Manifest.from_json(archive.manifest)
    assert back == trimmed.manifest and back.id == manifest.id
    assert (len(back.phases), back.trimmed_from) == (3, 4)
    assert {file.phase for file in back.files.private} == {phase.id for phase in back.phases}


# -- what is refused


@pytest.mark.parametrize(
    "missing", ["phases", "reference", "total_work", "program.argv", "phases.1.in_run.wall", "files.private.0.mode"]
)
def test_what_is_missing_is_named(missing: str) -> None:
    value = said()
    *outer, last = missing.split(".")
    place = value
    for key in outer:
        place = place[int(key) if isinstance(place, list) else key]
    del place[last]
    with pytest.raises(ProbeFileDamaged, match=rf"{last} is missing"):
        Manifest.from_json(value)


def test_what_version_1_lacks_is_named() -> None:
    old = recorded()["manifest"]
    del old["phases"][1]["cpu_run"]
    with pytest.raises(ProbeFileDamaged, match=r"phases\[1\]\.in_run\.cpu is missing"):
        Manifest.from_json(old)


WRONG: list[tuple[str, Any]] = [
    ("timing.seconds", math.nan),
    ("timing.seconds", math.inf),
    ("timing.seconds", -1.0),
    ("timing.seconds", 5e-324),
    ("timing.seconds", 10**400),
    ("timing.seconds", True),
    ("timing.seconds", "1.0"),
    ("timing.intervals", -1),
    ("timing.intervals", 9.0),
    ("timing.intervals", True),
    ("timing.boundaries.all", 1 << 53),
    ("tracing.interval", 0),
    ("program", []),
    ("program.argv", []),
    ("program.argv", "a.out"),
    ("program.argv", {"0": "a.out"}),
    ("program.argv.0", 3),
    ("program.argv.0", "a\0b"),
    ("program.argv.0", "a" * ((1 << 17) + 1)),
    ("program.cwd", "work"),
    ("program.cwd", ""),
    ("program.cwd", "/" + "a" * 4096),
    ("program.cpu_features.0", "a" * 201),
    ("reference.clock", "sun"),
    ("reference.clock", ["cpu"]),
    ("reference.cpu", []),
    ("reference.cpu", [1.0, 1.0]),
    ("reference.cpu.0", 0.0),
    ("reference.early_cpu", [1.0]),
    ("reference.plain_environment", [1.0]),
    ("reference.plain_environment", [1.0] * 3),
    ("reference.blocked_share", 1.01),
    ("reference.blocked_share", -0.01),
    ("raw_bytes", None),
    ("phases", None),
    ("phases.0", None),
    ("phases.0.id", 1),
    ("phases.0.id", -1),
    ("phases.0.id", 1 << 31),
    ("phases.0.representative", 9),
    ("phases.0.stratum", -2),
    ("phases.0.calls", -2),
    ("phases.0.weight", []),
    ("phases.0.weight", 1.01),
    ("phases.0.weight", 1.0),
    ("phases.0.time_share", 1.0),
    ("phases.0.time_share", 1e-300),
    ("phases.0.spread", -0.1),
    ("phases.0.work", 1e-300),
    ("phases.0.work", 1e300),
    ("phases.0.events.end", 1 << 64),
    ("phases.0.in_run.kernel", 1.5),
    ("phases.0.criu.wall", [1.0]),
    ("phases.0.criu.cpu.1", 0.0),
    ("phases.0.criu.kernel", [0.0]),
    ("phases.0.criu.faults", 0.5),
    ("phases.0.criu.failure", None),
    ("files.private.0.sha256", "0" * 63),
    ("files.private.0.sha256", "0" * 64 + "\n"),
    ("files.private.0.path", "a"),
    ("files.private.0.mode", 0o10000),
    ("selection.error", math.nan),
    ("selection.held_out_error", -1.0),
    ("selection.seed", 0.5),
    ("warmup_trials.0.relative", math.inf),
    ("reference_node.cores", "8"),
]


def test_what_these_are_made_of_is_sound() -> None:
    assert Manifest.from_json(said()).phases[0].id == 0


@pytest.mark.parametrize(("place", "value"), WRONG, ids=lambda x: str(x)[:40])
def test_what_no_build_writes_is_refused(place: str, value: Any) -> None:
    manifest = said()
    put(manifest, place, value)
    with pytest.raises(ProbeFileDamaged, match="the probe's manifest is damaged: ") as caught:
        Manifest.from_json(manifest)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400
