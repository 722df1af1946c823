# SPDX-License-Identifier: Apache-2.0
"""The profile format: what is written is read; what was damaged is refused, never misread by accident."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from checkpoint.errors import ProbeFileDamaged, ProgramTooShort, StorageError
from checkpoint.process.program import Program, lineages_from_json, lineages_to_json
from probe.formats.profile import BlockTable, Markers, Profile, load_profile, save_profile
from probe.pipeline.runs.boundaries import candidates
from probe.selection.select import select_phases

RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SECONDS = st.floats(0, 1e6, allow_nan=False)
INT64 = st.integers(0, 2**62)


def table(rows: list[tuple[int, int, int, int, int]]) -> BlockTable:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return BlockTable(
        columns[0].astype(np.int32), columns[1], columns[2], columns[3].astype(np.int32), columns[4].astype(np.int32)
    )


def markers(rows: list[tuple[int, int, int]]) -> Markers:
    return Markers(*np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    n, b = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    rows = st.tuples(st.integers(0, 3), INT64, INT64, st.integers(1, 500), st.integers(1, 60))
    counts = draw(st.lists(st.lists(st.integers(0, 2**40), min_size=b, max_size=b), min_size=n, max_size=n))
    return Profile(
        program=Program(
            argv=tuple(draw(st.lists(TEXT, min_size=1, max_size=4))),
            executable="/" + draw(TEXT),
            cwd="/" + draw(TEXT),
            env=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
            seed=draw(TEXT),
            began=draw(st.integers(0, 1 << 62)),
        ),
        tracer=draw(TEXT),
        unit=draw(st.sampled_from(["seconds", "instructions"])),
        interval=draw(SECONDS),
        counts=sp.csr_array(np.array(counts, dtype=np.int64).reshape(n, b)),
        seconds=np.array(draw(st.lists(SECONDS, min_size=n, max_size=n))),
        blocks=table(draw(st.lists(rows, min_size=b, max_size=b))),
        executed=table(draw(st.lists(rows, max_size=7))),
        images=tuple(draw(st.lists(st.tuples(TEXT, TEXT), max_size=3))),
        cpu_seconds=draw(SECONDS),
        prologue=draw(SECONDS),
        removed_sites=draw(st.integers(0, 100)),
        installed_sites=draw(st.integers(0, 10**6)),
        install_seconds=draw(SECONDS),
        draws=draw(st.integers(0, 1 << 18)),
        markers=markers(
            draw(st.lists(st.tuples(st.integers(1, n), st.integers(0, max(b - 1, 0)), INT64), max_size=4 * (b > 0)))
        ),
    )


def same(a: Profile, b: Profile) -> bool:
    arrays = [(a.seconds, b.seconds), (a.counts.toarray(), b.counts.toarray())]
    for one, other in ((a.blocks, b.blocks), (a.executed, b.executed), (a.markers, b.markers)):
        arrays += [(getattr(one, c), getattr(other, c)) for c in vars(one)]
    plain = [k for k in vars(a) if k not in ("seconds", "counts", "blocks", "executed", "markers")]
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays) and all(
        getattr(a, k) == getattr(b, k) for k in plain
    )


@RELAXED
@given(profile=profiles())
def test_what_is_written_is_read(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "a.profile"
    save_profile(profile, path)
    assert same(load_profile(path), profile)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a.profile"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A profile of some size, as bytes."""
    random = np.random.default_rng(1)
    rows = [(0, 16 * i, 16 * i, 12, 3) for i in range(200)]
    profile = Profile(
        Program(("program", "1"), "/bin/program", "/tmp", env={"LANG": "C"}), "native", "seconds", 0.05,
        sp.csr_array(random.integers(0, 9, (40, 200))), random.random(40), table(rows), table(rows),
        (("/bin/program", "0" * 64),), 2.0, 0.0, 1, 300, 0.1,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("written") / "a.profile"
    save_profile(profile, path)
    return path.read_bytes()


@settings(RELAXED, max_examples=150)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_profile_is_refused(share: float, written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.profile"
    path.write_bytes(written[: int(share * len(written))])
    with pytest.raises(ProbeFileDamaged, match=r"a\.profile"):
        load_profile(path)


@settings(RELAXED, max_examples=400)
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@example(share=0.04577788284694728, bit=0)
def test_a_flipped_bit_never_raises_anything_else(share: float, bit: int, written: bytes, tmp_path: Path) -> None:
    """Some bits mean nothing (times of archive members); any other error, or other contents, would be a fault."""
    path = tmp_path / "a.profile"
    at = int(share * len(written))
    path.write_bytes(written)
    whole = load_profile(path)
    path.write_bytes(written[:at] + bytes([written[at] ^ (1 << bit)]) + written[at + 1 :])
    try:
        read = load_profile(path)
    except ProbeFileDamaged as error:
        assert "a.profile" in str(error)
    else:
        assert same(read, whole)


@settings(RELAXED, max_examples=100)
@given(data=st.binary(max_size=200))
def test_foreign_files_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.profile"
    path.write_bytes(data)
    with pytest.raises(ProbeFileDamaged):
        load_profile(path)


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.profile"
    for arrays in ({}, {"header": np.frombuffer(b"{}", dtype=np.uint8)}, {"header": np.zeros(3)}):
        with path.open("wb") as file:
            np.savez(file, **arrays)
        with pytest.raises(ProbeFileDamaged):
            load_profile(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ProbeFileDamaged):
        load_profile(tmp_path / "one.npy")


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent"):
        load_profile(tmp_path / "absent")


def test_a_profile_that_cannot_be_written_leaves_nothing(
    written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.profile"
    path.write_bytes(written)
    profile = load_profile(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(StorageError, match="No space left"):
        save_profile(profile, path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.profile"] and path.read_bytes() == written


@pytest.mark.parametrize(
    ("array", "values", "words"),
    [
        ("seconds", [0.1, np.nan], r"interval 1 takes nan seconds \(1 of 2"),
        ("seconds", [np.inf, 0.1], "interval 0 takes inf"),
        ("seconds", [0.1, -0.1], "interval 1 takes -0.1"),
        ("seconds", [0.1], "different lengths"),
        ("counts_data", [1, -1], "negative number of times"),
        # SciPy's own check subtracts them as they are: unsigned, or as narrow as they came.
        ("counts_indptr", np.array([0, 1 << 40, 2], dtype=np.uint64), "do not follow each other"),
        ("counts_indptr", np.array([0, 127, 2], dtype=np.int8), "do not follow each other"),
        ("counts_indptr", [0, 1, 3], "do not follow each other"),
        ("counts_indptr", [1, 1, 2], "do not follow each other"),
        ("counts_indptr", [0, 2], "do not follow each other"),
        ("counts_indices", [0, 1], "a count of no block"),
        ("counts_indices", [0, -1], "a count of no block"),
        ("counts_indices", np.array([0, (1 << 64) - 1], dtype=np.uint64), "a count of no block"),
    ],
)
def test_impossible_values_are_refused(array: str, values: Any, words: str, tmp_path: Path) -> None:
    blocks = table([(0, 16, 16, 8, 2)])
    good = Profile(
        program=Program(argv=("a",), executable="/a", cwd="/"), tracer="native", unit="seconds", interval=0.05,
        counts=sp.csr_array(np.array([[1], [2]])), seconds=np.array([0.1, 0.1]), blocks=blocks, executed=blocks,
        images=(("/a", "0"),), cpu_seconds=0.2, prologue=0.0, removed_sites=0, installed_sites=1, install_seconds=0.0,
    )  # fmt: skip
    path = tmp_path / "made.profile"
    save_profile(good, path)
    assert load_profile(path).intervals == 2
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored}
    given = values if isinstance(values, np.ndarray) else np.array(values, dtype=arrays[array].dtype)
    with path.open("wb") as file:
        np.savez(file, **{**arrays, array: given})
    with pytest.raises(ProbeFileDamaged, match=words):
        load_profile(path)


def test_a_profile_without_intervals_is_read_but_nothing_is_chosen_from_it(tmp_path: Path) -> None:
    blocks = table([(0, 16, 16, 8, 2)])
    empty = Profile(
        program=Program(argv=("a",), executable="/a", cwd="/"), tracer="native", unit="seconds", interval=0.05,
        counts=sp.csr_array((0, 1), dtype=np.int64), seconds=np.zeros(0), blocks=blocks, executed=blocks,
        images=(), cpu_seconds=0.0, prologue=0.0, removed_sites=0, installed_sites=1, install_seconds=0.0,
    )  # fmt: skip
    save_profile(empty, tmp_path / "empty.profile")
    found = load_profile(tmp_path / "empty.profile")
    assert (found.intervals, candidates(found)) == (0, [])
    with pytest.raises(ProgramTooShort):
        select_phases(found.vectors(), found.instructions(), found.seconds, np.ones(0, dtype=bool))


@given(st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple), max_size=4))
def test_lineages_of_threads_are_read_as_written(lineages: list[tuple[int, ...]]) -> None:
    assert lineages_from_json(lineages_to_json(lineages)) == tuple(lineages)


@pytest.mark.parametrize("value", [["12"], [True], [-1], [[0, -1]], [[]], [[0.5]], [None], {"0": 1}, 5])
def test_other_values_name_no_threads(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        lineages_from_json(value)
