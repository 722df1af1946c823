# SPDX-License-Identifier: Apache-2.0
"""SimPoint's files: written from profiles, and read back from whoever chose the points."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from checkpoint.errors import ProbeError, StorageError
from checkpoint.process.program import Program
from probe import BuildOptions, SelectionOptions, build
from probe.formats.choices import INSTRUCTIONS
from probe.formats.profile import BlockTable, Profile
from probe.selection.simpoint import Point, export, read_points, select_points

PER_INTERVAL = 1000


def profile() -> Profile:
    """Sixty intervals of three behaviours, in blocks of 2, 5, 1 and 10 instructions."""
    kinds = {"a": [500, 0, 0, 0], "b": [0, 100, 500, 0], "c": [0, 0, 0, 100]}
    counts = np.array([kinds["aabbbc"[i % 6]] for i in range(60)], dtype=np.int64)
    instructions = np.array([2, 5, 1, 10], dtype=np.int32)
    column = np.arange(4, dtype=np.int64)
    table = BlockTable(np.zeros(4, dtype=np.int32), column, column, np.full(4, 5, dtype=np.int32), instructions)
    return Profile(
        program=Program(("x",), "/x", "/"), tracer="valgrind", unit=INSTRUCTIONS, interval=PER_INTERVAL,
        counts=sp.csr_array(counts), seconds=np.ones(60), blocks=table, executed=table, images=(("/x", ""),),
        cpu_seconds=1.0, prologue=0.0, removed_sites=0, installed_sites=4, install_seconds=0.0,
    )  # fmt: skip


def files(folder: Path, simpoints: str, weights: str) -> tuple[Path, Path]:
    (folder / "p.simpoints").write_text(simpoints)
    (folder / "p.weights").write_text(weights)
    return folder / "p.simpoints", folder / "p.weights"


# -- writing


def test_vectors_are_written_as_simpoint_reads_them(tmp_path: Path) -> None:
    made = profile()
    written = export(made, tmp_path / "x")
    assert [p.name for p in written.files] == ["x.bb", "x.simpoints", "x.weights"]
    lines = (tmp_path / "x.bb").read_text().splitlines()
    assert lines[:3] == ["T:1:1000", "T:1:1000", "T:2:500 :3:500"]
    table = np.zeros((60, 4))
    for row, line in enumerate(lines):
        assert re.fullmatch(r"T:\d+:\d+( :\d+:\d+)*", line)
        for block, count in re.findall(r":(\d+):(\d+)", line):
            table[row, int(block) - 1] = int(count)
    assert (table == made.vectors().toarray()).all()


def test_points_are_simpoints_own(tmp_path: Path) -> None:
    written = export(profile(), tmp_path / "x", SelectionOptions(max_phases=8))
    points = read_points(*written.files[1:])
    assert written.points == len(points) == 3 and written.intervals == 60
    kinds = {"aabbbc"[p.interval % 6]: p.weight for p in points}
    assert kinds == pytest.approx({"a": 1 / 3, "b": 1 / 2, "c": 1 / 6})


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not be written"):
        export(profile(), tmp_path / "none" / "x")
    assert list(tmp_path.iterdir()) == []


# -- reading


@pytest.mark.parametrize(
    ("simpoints", "weights", "said"),
    [
        ("3 0\n9 1\n", "0.5 0\n", r"do not belong together: only one of them has clusters \[1\]"),
        ("", "", "no point in it"),
        ("3 0\n\n9 0\n", "1 0\n", r"p\.simpoints, line 3: cluster 0 is there twice"),
        ("three 0\n", "1 0\n", "line 1: 'three 0' is not a number and a cluster"),
        ("3 0 1\n", "1 0\n", "is not a number and a cluster"),
        ("-3 0\n", "1 0\n", "-3 of cluster 0 is not the number of an interval"),
        ("2.5 0\n", "1 0\n", "2.5 of cluster 0 is not the number of an interval"),
        ("3 0\n", "0 0\n", "0 of cluster 0 is not a weight"),
        ("3 0\n", "nan 0\n", "nan of cluster 0 is not a weight"),
        ("nan 0\n", "1 0\n", "nan of cluster 0 is not the number"),
        ("3 0\n4 1\n", "0.7 0\n0.4 1\n", "the weights add up to 1.1"),
    ],
)
def test_files_that_say_nothing_sensible(simpoints: str, weights: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=said):
        read_points(*files(tmp_path, simpoints, weights))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="cannot be read"):
        read_points(tmp_path / "a", tmp_path / "b")


def test_points_come_in_the_order_of_the_run(tmp_path: Path) -> None:
    assert read_points(*files(tmp_path, "9 7\n3 2\n", "0.25 2\n0.75 7\n")) == (Point(3, 0.25), Point(9, 0.75))


# -- selection


def selected(points: list[Point], first_row: list[int] | None = None) -> tuple:  # type: ignore[type-arg]
    made = profile()
    rows = np.array(first_row if first_row is not None else range(61), dtype=np.int64)
    groups = [list(range(a, b)) for a, b in pairwise(rows)]
    vectors = sp.csr_array(np.array([made.vectors().toarray()[g].sum(axis=0) for g in groups]))
    seconds = np.array([sum({0: 1.0, 1: 1.0, 2: 4.0, 3: 4.0, 4: 4.0, 5: 0.5}[i % 6] for i in g) for g in groups])
    work = np.asarray(vectors.sum(axis=1)).ravel()
    eligible = np.ones(len(groups), dtype=bool)
    eligible[[0, -1]] = False
    return select_points(points, rows, vectors, work, seconds, eligible, SelectionOptions())


def test_weights_are_those_of_the_files() -> None:
    selection, warnings = selected([Point(6, 0.3), Point(8, 0.5), Point(11, 0.2)])
    assert [(p.representative, p.weight) for p in selection.phases] == [(6, 0.3), (8, 0.5), (11, 0.2)]
    # 0.3 x 1 s, 0.5 x 4 s, 0.2 x 0.5 s for each interval of the run.
    assert [p.time_share for p in selection.phases] == pytest.approx([0.3 / 2.4, 2.0 / 2.4, 0.1 / 2.4])
    assert [len(p.members) for p in selection.phases] == [20, 30, 10], "the intervals that are like each"
    assert selection.selection_error == pytest.approx(60 * 2.4 / (20 + 120 + 5) - 1)
    assert warnings == [] and selection.from_json(selection.to_json()).to_json() == selection.to_json()


def test_weights_need_not_be_whole() -> None:
    selection, _ = selected([Point(6, 0.4), Point(8, 0.5)])
    assert selection.dropped_time_share == pytest.approx(0.1)
    assert sum(p.time_share for p in selection.phases) == pytest.approx(0.9)


def test_a_point_at_the_edge_is_moved_to_one_like_it() -> None:
    selection, warnings = selected([Point(0, 0.5), Point(8, 0.5)])
    first = selection.phases[0].representative
    assert first > 0 and first % 6 in (0, 1)
    assert warnings == [f"point 0 cannot be captured; its nearest interval, {first}, stands for it"]


def test_points_are_found_in_joined_intervals() -> None:
    rows = [0, 6, 9, 12, *range(13, 61)]
    selection, _ = selected([Point(10, 0.5), Point(11, 0.2), Point(20, 0.3)], rows)
    assert [(p.representative, p.weight) for p in selection.phases] == [(2, 0.7), (11, 0.3)]


def test_points_beyond_the_end_are_refused() -> None:
    with pytest.raises(ProbeError, match=r"points \[60\] lie beyond the run's 60 intervals"):
        selected([Point(3, 0.5), Point(60, 0.5)])


def test_points_need_intervals_of_instructions(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="intervals of instructions: give --tracer valgrind"):
        build(["/bin/true"], tmp_path / "x.probe", options=BuildOptions(points=(Point(3, 1.0),)))
