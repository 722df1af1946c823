# SPDX-License-Identifier: Apache-2.0
"""Trimmed probes: the right phases, whole and valid, and runnable."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from documentation import check_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from small_archive import file_size_limit, make_checkpoint
from small_probe import SmallProbe, command, small_probe
from whole_probe import SHARES, check_valid, manifest_of, record, whole

from checkpoint.errors import NoPrediction, ProbeError, ProbeFileDamaged, StorageError
from probe.candidates.result import check_coverage
from probe.cli.main import cli
from probe.formats.phase_record import Times
from probe.inspection.description import show
from probe.inspection.trimming import by_importance, tradeoff, trim
from reducer.archive import PhaseCheckpoint, open_probe, write_probe

__all__ = ["whole"]


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_phases_with_most_time_are_kept_whole(whole: Path, tmp_path: Path, number: int, how: Any) -> None:
    trimmed = trim(whole, tmp_path / "small.probe", phases=number, compression=how)
    kept = [1, 2, 3, 0][:number]
    manifest = check_valid(trimmed.path, kept, tmp_path / "out", tmp_path)
    assert manifest == trimmed.manifest
    assert trimmed.size_bytes == trimmed.path.stat().st_size and trimmed.source_bytes == whole.stat().st_size
    assert trimmed.path.stat().st_mode & 0o777 == 0o600
    assert manifest.trimmed_from == 4
    assert manifest.coverage == pytest.approx(sum(SHARES[p] for p in kept))
    assert manifest.coverage + manifest.selection.dropped_time_share == pytest.approx(1.0)
    assert manifest.raw_bytes == sum(record(p).checkpoint.raw_bytes for p in kept)
    with open_probe(trimmed.path) as probe:
        assert {m.compression for m in probe.members.values()} == {how}
        assert set(probe.data_names) == {"profile", *(f"touched-{p}" for p in kept)}
        # A private copy belongs to its phase and goes with it.
        assert {f.path for f in probe.files} == {"/tool", *(f"/private/{p}/log" for p in kept if p < 2)}
    assert {f.phase for f in manifest.files.private} == {p for p in kept if p < 2}
    assert manifest.files.external == ()


def test_a_trimmed_probe_can_be_trimmed_again(whole: Path, tmp_path: Path) -> None:
    trim(whole, tmp_path / "three.probe", phases=3, compression="zstd")
    trimmed = trim(tmp_path / "three.probe", tmp_path / "two.probe", phases=2)
    check_valid(trimmed.path, [1, 2], tmp_path / "out", tmp_path)
    assert trimmed.manifest.trimmed_from == 4
    direct = trim(whole, tmp_path / "direct.probe", phases=2)
    assert direct.manifest == trimmed.manifest


@given(
    phases=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4),
    shares=st.lists(st.sampled_from([0.1, 0.2, 0.25]), min_size=4, max_size=4),
    number=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_any_phases_come_back(
    phases: list[list[int]], shares: list[float], number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    checkpoints = [PhaseCheckpoint(n, make_checkpoint(folder / f"phase-{n}", pages)) for n, pages in enumerate(phases)]
    manifest = manifest_of([record(n, time_share=shares[n]) for n in range(len(phases))])
    write_probe(folder / "whole.probe", manifest.to_json(), checkpoints)
    kept = [p.id for p in by_importance(manifest)][:number]
    trim(folder / "whole.probe", folder / "small.probe", phases=number)
    check_valid(folder / "small.probe", kept, folder / "out", folder)
    # As a probe of these phases alone would have been packed.
    with open_probe(folder / "small.probe") as probe:
        distinct = {page for n in kept for page in phases[n]} - {0}
        assert probe.distinct_pages == len(distinct)
    shutil.rmtree(folder)


def test_importance_is_time_and_only_phases_that_run_count() -> None:
    phases = [record(0), record(1, criu=Times()), record(2), record(3), record(4, time_share=0.3)]
    assert [p.id for p in by_importance(manifest_of(phases))] == [2, 4, 3, 0]


def test_a_phase_that_is_named_and_not_there(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "phase-0", [1])
    whole = tmp_path / "whole.probe"
    write_probe(whole, manifest_of([record(0), record(3)]).to_json(), [PhaseCheckpoint(0, folder)])
    with pytest.raises(ProbeFileDamaged, match="names a phase 3 that it does not hold"):
        tradeoff(whole)
    with pytest.raises(ProbeFileDamaged, match="names a phase 3"):
        trim(whole, tmp_path / "small.probe", phases=2)


def test_phases_that_cannot_run_are_dropped_first(tmp_path: Path) -> None:
    phases = [record(0), record(1, criu=Times(failure="why"))]
    folders = [make_checkpoint(tmp_path / f"phase-{n}", [n + 1]) for n in range(2)]
    checkpoints = [PhaseCheckpoint(n, folder) for n, folder in enumerate(folders)]
    write_probe(tmp_path / "whole.probe", manifest_of(phases).to_json(), checkpoints)
    trimmed = trim(tmp_path / "whole.probe", tmp_path / "small.probe", phases=5)
    assert [p.id for p in trimmed.manifest.phases] == [0]
    failed = manifest_of([phases[1]]).to_json()
    write_probe(tmp_path / "none.probe", failed, checkpoints[1:])
    with pytest.raises(ProbeError, match="no phase of it can be run"):
        trim(tmp_path / "none.probe", tmp_path / "small.probe", phases=1)


# -- how much is kept


@pytest.mark.parametrize(("coverage", "kept"), [(0.01, 1), (0.5, 1), (0.51, 2), (0.81, 2), (0.9, 3), (0.97, 4)])
def test_the_fewest_phases_that_reach_the_coverage(whole: Path, tmp_path: Path, coverage: float, kept: int) -> None:
    trimmed = trim(whole, tmp_path / "small.probe", coverage=coverage)
    assert len(trimmed.manifest.phases) == kept
    assert trimmed.manifest.coverage >= coverage - 1e-9


def test_a_coverage_that_no_phases_reach_names_the_highest(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"cover 97\.00% of the run, 99\.00% are asked.*--coverage 0\.9[67] at most"):
        trim(whole, tmp_path / "small.probe", coverage=0.99)
    assert not (tmp_path / "small.probe").exists()


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_no_byte_more_than_the_size_allowed_and_no_phase_less(whole: Path, tmp_path: Path, how: Any) -> None:
    sizes = [trim(whole, tmp_path / "small.probe", phases=n, compression=how).size_bytes for n in (1, 2, 3, 4)]
    assert sizes == sorted(sizes)
    for number, size in enumerate(sizes, 1):
        trimmed = trim(whole, tmp_path / "small.probe", max_size=round(size * 1.02), compression=how)
        assert (len(trimmed.manifest.phases), trimmed.size_bytes) == (number, size)
        if number > 1:
            trimmed = trim(whole, tmp_path / "small.probe", max_size=size - 1, compression=how)
            assert len(trimmed.manifest.phases) == number - 1
    old = (tmp_path / "small.probe").read_bytes()
    with pytest.raises(ProbeError, match=r"one phase alone takes about \d+ bytes with its files, more than 1000"):
        trim(whole, tmp_path / "small.probe", max_size=1000, compression=how)
    assert (tmp_path / "small.probe").read_bytes() == old
    assert not list(tmp_path.glob(".*part"))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"phases": 1, "coverage": 0.5},
        {"phases": 1, "max_size": 10},
        {"phases": 0},
        {"coverage": 1.5},
        {"max_size": -1},
    ],
)
def test_exactly_one_sensible_limit(whole: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ProbeError, match=r"exactly one of|cannot be kept"):
        trim(whole, tmp_path / "small.probe", **wrong)
    assert not (tmp_path / "small.probe").exists()


# -- what is there stays


def test_a_probe_can_be_trimmed_in_place(whole: Path, tmp_path: Path) -> None:
    trimmed = trim(whole, whole, phases=2)
    assert trimmed.size_bytes < trimmed.source_bytes
    check_valid(whole, [1, 2], tmp_path / "out", tmp_path)


def test_too_little_room_keeps_what_is_there(whole: Path, tmp_path: Path) -> None:
    before = whole.read_bytes()
    with file_size_limit(200_000), pytest.raises(StorageError, match="bytes are needed"):
        trim(whole, whole, phases=3)
    assert whole.read_bytes() == before
    assert not list(tmp_path.glob(".*part"))


def test_a_damaged_probe_is_not_trimmed(whole: Path, tmp_path: Path) -> None:
    with open_probe(whole) as probe:
        member = probe.members["phase/1/pages"]
        image = probe.members["phase/2/images"]
    good = whole.read_bytes()
    for at in (member.offset + member.stored_size // 2, image.offset + image.stored_size // 2):
        bad = bytearray(good)
        bad[at] ^= 1
        whole.write_bytes(bad)
        with pytest.raises(ProbeFileDamaged, match="is damaged"):
            trim(whole, tmp_path / "small.probe", phases=3)
        assert not list(tmp_path.glob("*small.probe*"))


def test_targets_that_are_no_files_are_refused(whole: Path, tmp_path: Path) -> None:
    for target in (tmp_path, Path("/dev/null"), tmp_path / "absent" / "x.probe"):
        with pytest.raises(StorageError):
            trim(whole, target, phases=1)


# -- running what is left


def test_too_little_coverage_says_what_to_do(whole: Path, tmp_path: Path) -> None:
    trimmed = trim(whole, tmp_path / "small.probe", phases=2)
    assert trimmed.least_coverage in (0.8, 0.81)
    with pytest.raises(NoPrediction, match=r"covers 81\.0% of the run \(it was trimmed to 2 of 4 phases\)") as raised:
        check_coverage(trimmed.manifest, None)
    advised = re.search(r"--min-coverage (\S+)", str(raised.value))
    assert advised and float(advised[1]) == trimmed.least_coverage
    check_coverage(trimmed.manifest, trimmed.least_coverage)
    enough = trim(whole, tmp_path / "small.probe", phases=3)
    assert enough.least_coverage is None
    check_coverage(enough.manifest, None)
    untrimmed = manifest_of([record(1)])
    with pytest.raises(NoPrediction, match=r"covers 50\.0% of the run, 90\.0% are needed"):
        check_coverage(untrimmed, None)


@pytest.fixture
def small(builds: Path) -> SmallProbe:
    return small_probe(builds)


@pytest.mark.slow
def test_a_real_probe(small: SmallProbe, tmp_path: Path) -> None:
    before = show(small.path)
    assert before["trimmed_from"] is None
    rows = tradeoff(small.path)
    assert len(rows) > 1
    for row in rows:
        trimmed = trim(small.path, tmp_path / f"{row.phases}.probe", phases=row.phases)
        assert row.size_bytes == pytest.approx(trimmed.size_bytes, rel=0.03)
        shown = show(trimmed.path)
        assert {p["id"] for p in shown["phases"]} == set(row.kept)
        assert shown["coverage"] == pytest.approx(row.coverage)
        assert shown["trimmed_from"] == len(before["phases"])
        assert shown["raw_bytes"] <= before["raw_bytes"]
    assert shown["raw_bytes"] == before["raw_bytes"]

    said = json.loads(command("show", "--tradeoff", "--json", small.path).stdout)
    check_keys(said, "probe show --tradeoff --json")
    assert [row["size_bytes"] for row in said["tradeoff"]] == [row.size_bytes for row in rows]
    printed = command("show", "--tradeoff", small.path).stdout.splitlines()
    assert len(printed) == len(rows) + 1 and printed[0].split() == ["phases", "coverage", "size", "expected", "error"]

    least, need = tmp_path / "least.probe", rows[0].coverage
    advice = command("trim", small.path, "--coverage", "0.01", "-o", least).stdout
    assert f"1 of {len(before['phases'])} phases" in advice
    assert ("--min-coverage" in advice) == (need < 0.9)
    if need < 0.9:
        refused = command("run", "-q", "--repeat", "1", least, status=15)
        assert refused.stdout == "" and "it was trimmed to 1 of" in refused.stderr
    accepted = re.search(r"--min-coverage (\S+);", advice)
    options = ("--min-coverage", accepted[1]) if accepted else ()
    result = json.loads(command("run", "-q", "--repeat", "1", *options, "--json", least).stdout)
    assert result["prediction"]["coverage"] == pytest.approx(need)
    assert [p["id"] for p in result["phases"]] == list(rows[0].kept)


@pytest.mark.slow
def test_a_probe_packed_with_zstd_runs(small: SmallProbe, tmp_path: Path) -> None:
    path = tmp_path / "zstd.probe"
    small.again(path, "--compress", "zstd")
    with open_probe(path) as probe:
        assert {one.compression for one in probe.members.values()} == {"zstd"}
    trim(path, path, phases=1, compression="zstd")
    command("run", "-q", "--repeat", "1", "--min-coverage", "0", path)


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        ([], 2, "exactly one of"),
        (["--phases", "1", "--coverage", "1"], 2, "exactly one of"),
        (["--max-size", "20 miles"], 2, "is not a size"),
        (["--max-size", "1.5k"], 1, "more than 1500;"),
        (["--max-size", "1G"], 0, "4 of 4 phases"),
        (["--max-size", "0.9 MB"], 0, "1 of 4 phases"),
    ],
)
def test_the_command_takes_one_limit_and_sizes_as_people_write_them(
    whole: Path, tmp_path: Path, options: list[str], status: int, says: str
) -> None:
    path = tmp_path / "x.probe"
    done = CliRunner().invoke(cli, ["trim", str(whole), *options, "-o", str(path)])
    if isinstance(done.exception, ProbeError):
        assert (done.exception.exit_code, path.exists()) == (status, False)
        assert says in str(done.exception)
        return
    assert done.exit_code == status, done.output
    assert says in done.output
    assert path.exists() == (status == 0)
