# SPDX-License-Identifier: Apache-2.0
"""Manifests of earlier and later versions are read, those that no build writes are refused."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from made_probe import made_manifest, made_probe

from checkpoint.errors import ProbeFileDamaged
from checkpoint.restore.criu_restore import RegionTime
from probe.candidates.result import RunResult, predict_from
from probe.formats.checked import Unsound
from probe.formats.checkpoints import CapturedPhase, FlatPhase, ReducedPhase, WarmupChoice
from probe.formats.choices import SelectionOptions
from probe.formats.manifest import MANIFEST_VERSION, Manifest, OutsideRecord
from probe.formats.phase_record import CRIU, DIRECT
from probe.formats.selection import Selection
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
    with pytest.raises(ProbeFileDamaged, match=r"version .*; this program reads 1 and 2 and 3"):
        Manifest.from_json({**said(), "manifest_version": version})


def as_before(value: Any, before: Any) -> Any:
    """`value` with those keys alone that the version before had."""
    if isinstance(value, dict) and isinstance(before, dict):
        return {key: as_before(value[key], before[key]) for key in before}
    if isinstance(value, list) and isinstance(before, list) and len(value) == len(before):
        return [as_before(one, other) for one, other in zip(value, before, strict=True)]
    return value


def test_version_1_says_the_same(tmp_path: Path) -> None:
    old = recorded()
    manifest = Manifest.from_json(old["manifest"])
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    assert manifest.id == old["show"]["id"]
    shown = show(made_probe(tmp_path / "new.probe", manifest))
    # New keys may come at any time.
    assert as_before(shown, old["show"]) == {**old["show"], "size_bytes": shown["size_bytes"]}


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
    now = json.loads(json.dumps(result.to_json()))
    # What there was no such thing as in those days.
    assert now.pop("undisturbed") == {}
    assert now["estimators"].pop("combined") == now["estimators"]["calibrated"]
    assert [now["variances"].pop(cause) for cause in ("outside", "load", "direct")] == [0, 0, 0]
    assert now.pop("threads") == 1
    assert now.pop("yardsticks") == {"node": {}, "reference": {}}
    repeats = [repeat for phase in now["phases"] for repeat in phase["repeats"]]
    assert [tuple(repeat.pop("yardsticks")) for repeat in repeats] == [()] * len(repeats)
    for key in ("variances", "prediction", "degrees_of_freedom"):
        assert now.pop(key) == pytest.approx(old["run"].pop(key), rel=1e-12)
    assert now == old["run"]


def test_time_in_other_processes_is_another_version() -> None:
    """A reader of version 2 would take it for the program's, and give too narrow an interval."""
    alone, _ = made_manifest(2, 9)
    manifest, _ = made_manifest(2, 9, outside=OutsideRecord(0.25, 1.0, 0.5, 3, ("sh -c x", "x")))
    assert (alone.to_json()["manifest_version"], manifest.to_json()["manifest_version"]) == (2, 3)
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    without = alone.to_json()
    del without["outside"]
    assert Manifest.from_json(json.loads(json.dumps(without))) == alone


def test_threads_that_share_the_work_are_another_version() -> None:
    """A reader of version 3 would give them one processor; a probe of one thread is written as it was."""
    alone, _ = made_manifest(2, 9)
    manifest, _ = made_manifest(2, 9, threads=2)
    assert "threads" not in alone.to_json() and alone.to_json()["manifest_version"] == 2
    assert (manifest.to_json()["manifest_version"], manifest.to_json()["threads"]) == (4, 2)
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    with pytest.raises(ProbeFileDamaged, match="no thread"):
        Manifest.from_json({**manifest.to_json(), "threads": 0})


def test_other_processes_are_not_the_whole_run() -> None:
    value = {**said(), "outside": {"share": 1.0, "wall": 1.0, "cpu": 0.5, "processes": 1}}
    with pytest.raises(ProbeFileDamaged, match="outside: the whole run"):
        Manifest.from_json(value)


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


def records(kind: Any) -> set[Any]:
    """The data classes that the fields of one hold, itself included."""
    found = {kind}
    for one in get_type_hints(kind).values():
        for inner in (one, *get_args(one)):
            found |= records(inner) if is_dataclass(inner) else set()
    return found


def test_every_value_of_a_file_has_a_rule() -> None:
    known = set().union(*map(records, (Manifest, CapturedPhase, ReducedPhase, FlatPhase, WarmupChoice, Selection))) - {
        SelectionOptions
    }
    assert len(known) == 28
    without = {f"{kind.__name__}.{one.name}" for kind in known for one in fields(kind) if "rule" not in one.metadata}
    # Both follow from the labels, and options are held against their defaults.
    assert without == {"Phase.members", "Selection.phases"}


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
    ("tracing.sites", True),
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
    ("reference.early_wall", []),
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
    ("phases.0.in_run", {"started": 0.0, "wall": 1.0, "cpu": 1.0, "kernel": 1.5, "kernel_error": 0.1}),
    ("phases.0.in_run.kernel", 0.5),
    ("phases.0.in_run.kernel_error", 0.5),
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


# -- what the stages of a build leave for each other

CAPTURED: dict[str, Any] = {
    "phase": 1, "interval": 2, "folder": "phase-1", "pid": 7, "warmup": 1, "warm_event": 1, "start_event": 2,
    "end_event": 3, "written": {"/out": "written-1/0"}, "huge": [[0, 4096]],
    "instead": "", "reduced": None, "copying": 0.25, "standing": 0.5,
}  # fmt: skip
REDUCED: dict[str, Any] = {
    "phase": 1, "folder": "phase-1-reduced", "raw_bytes": 9000, "raw_pages": 2, "kept_pages": 1, "touched": 1,
    "whole": "", "in_groups": True,
}  # fmt: skip


@pytest.mark.parametrize("reduced", [None, REDUCED])
def test_captured_phases_come_back(reduced: dict[str, Any] | None) -> None:
    captured = CapturedPhase.from_json(CAPTURED | {"reduced": reduced})
    assert captured.huge == ((0, 4096),) and captured.written == {"/out": "written-1/0"}
    assert json.loads(json.dumps(captured.to_json())) == CAPTURED | {"reduced": reduced}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("folder", "/phase-1"),
        ("folder", "../phase-1"),
        ("folder", "phase-1/.."),
        ("folder", ""),
        ("written", []),
        ("written", {"out": "written-1/0"}),
        ("written", {"/out": "a/../../b"}),
        ("huge", [[0]]),
        ("reduced", {"phase": 1}),
        ("reduced", REDUCED | {"folder": "../phase-2"}),
        ("pid", None),
    ],
)
def test_captured_phases_of_nonsense_are_refused(key: str, value: Any) -> None:
    with pytest.raises(Unsound, match=key):
        CapturedPhase.from_json({**CAPTURED, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("all_calls", 1), ("calls", [[1, 2, 3]]), ("opened", "a"), ("refused", None), ("seen", [[-1, 1]])],
)
def test_flat_phases_of_nonsense_are_refused(key: str, value: Any) -> None:
    good = {"phase": 1, "refused": "", "opened": ["a"], "calls": [[0, 3]], "seen": [], "all_calls": True}
    assert FlatPhase.from_json(good).calls_made == 3
    with pytest.raises(Unsound, match=key):
        FlatPhase.from_json({**good, key: value})


@pytest.mark.parametrize("options", [[], {"dimensions": "15"}, {"dimensions": True}, {"rate_spread": "a"}, {"more": 1}])
def test_selections_with_other_options_are_refused(options: Any) -> None:
    good: dict[str, Any] = {
        "version": 1, "phases": [], "labels": [-1, -1], "dropped_time_share": 1, "k_bic": 0, "seed": 1, "cuts": 0,
        "selection_error": 0.0, "held_out_error": None, "merges": [], "options": {"rate_spread": 1},
    }  # fmt: skip
    assert Selection.from_json(good).options.rate_spread == 1
    with pytest.raises(ProbeFileDamaged, match="options"):
        Selection.from_json({**good, "options": options})


def test_a_reading_of_yardsticks_belongs_to_each_repeat() -> None:
    value = said()
    count = len(value["phases"][0]["criu"]["wall"])
    readings = [[0.001, 0.002, 0.003, 0.004]] * count
    put(value, "phases.0.criu.yardsticks", readings)
    assert Manifest.from_json(value).phases[0].criu.yardsticks == tuple(map(tuple, readings))
    put(value, "phases.0.criu.yardsticks", readings[1:])
    with pytest.raises(ProbeFileDamaged, match="not as many readings of yardsticks"):
        Manifest.from_json(value)
