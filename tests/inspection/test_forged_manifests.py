# SPDX-License-Identifier: Apache-2.0
"""Probes whose manifests somebody has forged: every command that reads them refuses them, or prints numbers.

Whatever is put at any place of a manifest, there is no traceback and nothing that is no number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_probe import made_manifest, made_probe, made_result
from small_archive import rewrite

from checkpoint import strict_json
from checkpoint.errors import ProbeError, ProbeFileDamaged
from checkpoint.restore.criu_restore import RegionTime
from probe.candidates.remote import split_phases
from probe.candidates.result import RunResult, check_coverage, predict_from
from probe.cli.main import cli
from probe.formats.manifest import Manifest
from probe.formats.phase_record import CRIU, DIRECT
from probe.node.agent import _phase_members, _runtime
from probe.node.facts import check_node
from probe.node.files import check_external
from probe.node.measuring import MeasuredPhase, Restorers
from probe.node.phases import phases_here
from probe.node.quietness import QuietJudge
from probe.report.gathering import gather
from probe.report.page import _facts
from probe.report.refusals import phases_left_out, warnings
from probe.report.trust import checks, headline, verdict
from probe.report.writing import write_report
from probe.terminal import one_line
from reducer.unpack import open_probe

RECORDED = Path(__file__).parents[1] / "recorded" / "manifest-1.json"

DELETED, ADDED, DOUBLED = "deleted", "added", "doubled"

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 9, 7.5, 0.5, -0.5, 1.0, 1e-300, 5e-324, 1e-12, 1e12, 1e300, -1e300, 10**400,
    1 << 31, 1 << 53, 1 << 63, math.nan, math.inf, -math.inf, "NaN", "Infinity", "", "0.5", "1", "/", "cpu", "wall",
    "seconds", "criu", "x" * 5000, "x" * (1 << 18), "/" + "x" * 5000, "\x1b[2J\r\n\x00\x7f\u202e", "\x1b[2J\r\n\u202e",
    "a\nb\tc", "/a\nb", [], {}, [[]], [[[[[]]]]], [None], [0.0], [1.0], [0.5, 0.5], [1.0] * 5, [1e-300] * 5, [1e9] * 5,
    [True] * 5, ["a"], {"a": 1}, {"a": {"a": []}}, "deep",
)  # fmt: skip

NO_NUMBERS = re.compile(r"(?<![\w.])[-+]?(nan|inf)(?![\w.])")
"""As Python prints them; the texts that are put in are not written so."""


def deep(levels: int = 500) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def places(value: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value, by keys and positions, the value itself included."""
    yield so_far
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*so_far, key))


def _has(outer: Any, key: Any) -> bool:
    """Whether a place is still there: an earlier forgery may have put another kind of value above it."""
    if isinstance(outer, dict):
        return key in outer
    return isinstance(outer, list) and isinstance(key, int) and key < len(outer)


def forge(manifest: dict[str, Any], place: tuple[Any, ...], what: Any) -> None:
    """Do that at the place, if it is still there."""
    outer: Any = manifest
    for key in place[:-1]:
        if not _has(outer, key):
            return
        outer = outer[key]
    key = place[-1]
    if not _has(outer, key):
        return
    if what is DELETED:
        del outer[key]
    elif what is ADDED:
        if isinstance(outer, dict):
            outer["more"] = math.pi
        else:
            outer.append(None)
    elif what is DOUBLED:
        if isinstance(outer, list):
            outer.append(outer[key])
    else:
        outer[key] = deep() if what == "deep" else what


def as_version_1() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(RECORDED.read_text())["manifest"]
    return value


def as_version_2() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(Manifest.from_json(as_version_1()).to_json()))
    return value


ORIGINALS: tuple[Callable[[], dict[str, Any]], ...] = (as_version_1, as_version_2)


@st.composite
def forged(draw: st.DrawFn) -> dict[str, Any]:
    """A real manifest, of one of the versions, with up to three forgeries."""
    manifest = draw(st.sampled_from(ORIGINALS))()
    where = st.sampled_from([place for place in places(manifest) if place])
    for place in draw(st.lists(where, min_size=1, max_size=3)):
        forge(manifest, place, draw(st.sampled_from((*VALUES, DELETED, ADDED, DOUBLED))))
    return manifest


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_probe(tmp_path_factory.mktemp("forged") / "base.probe", Manifest.from_json(as_version_1()))


def with_manifest(base: Path, manifest: dict[str, Any]) -> Path:
    path = base.with_name("forged.probe")
    path.write_bytes(base.read_bytes())
    rewrite(path, lambda document: document.update(manifest=manifest))
    return path


def printed(*arguments: str | Path) -> str:
    """What a command prints; it may end with an error of ours, and with no other."""
    done = CliRunner().invoke(cli, [str(a) for a in arguments])
    if isinstance(done.exception, ProbeError):
        assert one_line(str(done.exception)).isprintable(), done.exception
        return ""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def judge(path: Path, folder: Path) -> None:
    """Everything that `probe run` and its node agent do with a manifest before and after phases are restored."""
    with open_probe(path) as archive:
        manifest = Manifest.from_json(archive.manifest)
        everything = frozenset(p.id for p in manifest.phases)
        for check in (check_node, lambda m: check_coverage(m, None), lambda m: check_external(m.files.external)):
            tolerated(check, manifest)
        tolerated(lambda: phases_here(archive, manifest, folder, Restorers(), []))
        tolerated(lambda: _phase_members(archive, manifest, everything))
        _runtime("auto", archive, manifest, everything, carried=True)
    runnable = [p for p in manifest.phases if p.can_run]
    assert set().union(*split_phases(runnable, 2)) == {p.id for p in runnable}
    measured = []
    for phase in runnable:
        restorer = DIRECT if phase.direct.wall else CRIU
        times = (RegionTime(0.3, 0.25, 0.1, 0.01, 0.01, 1), RegionTime(0.31, 0.25, 0.1, 0.01, 0.01, 1))
        measured.append(MeasuredPhase(phase.id, times, restorer=restorer))
        QuietJudge(manifest, None).why_not(phase.id, restorer, times[0])
    result = RunResult("a", manifest, {}, tuple(measured), predict_from(manifest, measured, min_coverage=0.0))
    strict_json.dumps(result.to_json())


def tolerated(check: Callable[..., Any], *arguments: Any) -> None:
    try:
        check(*arguments)
    except ProbeError as error:
        assert one_line(str(error)).isprintable()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(manifest=forged())
def test_forged_manifests_are_refused_or_shown(base: Path, tmp_path_factory: Any, manifest: dict[str, Any]) -> None:
    path = with_manifest(base, manifest)
    for verb in (["show"], ["show", "--tradeoff"], ["explain"], ["explain", "--phase", "0"]):
        assert not NO_NUMBERS.search(printed(*verb, path))
        if text := printed(*verb, "--json", path):
            strict_json.loads(text)
    small = path.with_name("small.probe")
    if text := printed("trim", "--json", "--phases", "2", "-o", small, path):
        strict_json.loads(text)
        with open_probe(small) as archive:
            Manifest.from_json(archive.manifest)
    tolerated(judge, path, base.parent)
    tolerated(reported, path)


def reported(path: Path) -> None:
    """All that a report says in words."""
    found = gather(path, [])
    text = [*map(str, _facts(found)), *map(str, checks(found)), headline(checks(found)), verdict(found)]
    text += [*map(str, phases_left_out(found)), *map(str, warnings(found))]
    assert not NO_NUMBERS.search(" ".join(text))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    place=st.sampled_from([place for place in places(as_version_2()) if place]),
    value=st.sampled_from([0, 1, 2, 0.5, 1e-12, 1e9, "/", "", "a\nb", [], "wall"]),
)
def test_reports_of_forged_manifests_are_drawn(base: Path, place: tuple[Any, ...], value: Any) -> None:
    manifest = as_version_2()
    forge(manifest, place, value)
    path = with_manifest(base, manifest)
    tolerated(lambda: write_report(path, page=path.with_suffix(".html")))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_what_is_no_number_is_no_json(number: str, tmp_path: Path) -> None:
    manifest, _ = made_manifest(2, 9)
    with pytest.raises(ValueError, match="is no number"):
        strict_json.loads(f'{{"a": [{number}]}}')
    result = json.dumps(made_result(manifest, "n1")).replace('"degrees_of_freedom": 8.0', f'"more": {number}')
    assert number in result
    probe = made_probe(tmp_path / "a.probe", manifest)
    (tmp_path / "result.json").write_text(result)
    with pytest.raises(ProbeError, match="not JSON"):
        gather(probe, [tmp_path / "result.json"])
    rewrite(probe, lambda document: document["manifest"]["timing"].update(seconds=float(number)))
    with pytest.raises(ProbeFileDamaged, match="is no number"):
        open_probe(probe).close()


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf]])
def test_what_is_no_number_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict_json.dumps({"a": value})


def test_nesting_without_end_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        strict_json.loads("[" * 100_000)


def test_json_is_read_and_written_at_one_place() -> None:
    root = Path(__file__).parents[2]
    users: Sequence[str] = [
        str(path.relative_to(root))
        for folder in ("probe", "checkpoint", "reducer")
        for path in (root / folder).rglob("*.py")
        if re.search(r"^\s*(import json|from json import)\b", path.read_text(), re.MULTILINE)
    ]
    in_scripts = [
        "probe/applications/inputs.py",
        "probe/candidates/agent_start.py",
        "probe/dataflow/disk_times.py",
        "probe/emulation/elsewhere/start.py",
    ]
    """Texts that another Python runs, which has no module of ours."""
    assert sorted(users) == ["checkpoint/strict_json.py", *in_scripts]
