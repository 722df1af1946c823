# SPDX-License-Identifier: Apache-2.0
"""The comparison of a run's output with plain runs': forgives what is volatile, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.errors import StorageError
from checkpoint.process.program import Streams
from probe.pipeline import outputs as module
from probe.pipeline.outputs import Compared, compare_outputs, note_run, output_streams, remove_output

RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
WORDS = st.text("abc xyz-", min_size=1, max_size=12)
NUMBERS = st.integers(0, 10**9)


def streams(folder: Path, name: str, stdout: str, stderr: str = "") -> Streams:
    made = Streams(folder / f"{name}.stdout", folder / f"{name}.stderr")
    made.stdout.write_text(stdout)
    made.stderr.write_text(stderr)
    return made


NOTHING = Compared([], [])


def compared(folder: Path, plain: list[str], run: str) -> Compared:
    references = [streams(folder, f"plain-{i}", text) for i, text in enumerate(plain)]
    return compare_outputs(references, streams(folder, "run", run), "the traced run")


@RELAXED
@given(lines=st.lists(WORDS), numbers=st.lists(NUMBERS, min_size=4, max_size=4, unique=True))
def test_numbers_that_vary_between_plain_runs_may_vary(tmp_path: Path, lines: list[str], numbers: list[int]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    *plain, run = [f"{text}took {n} ms\n" for n in numbers]
    found = compared(tmp_path, plain, run)
    assert found.warnings == [] and "1 lines differ from plain runs' in numbers alone" in found.notes[0]


@RELAXED
@given(lines=st.lists(st.tuples(WORDS, NUMBERS), min_size=1), at=st.integers(0), change=st.integers(1, 10**6))
def test_numbers_of_a_traced_run_may_vary_with_a_note(
    tmp_path: Path, lines: list[tuple[str, int]], at: int, change: int
) -> None:
    at %= len(lines)
    other = [(word, n + change * (i == at)) for i, (word, n) in enumerate(lines)]

    def text(entries: list[tuple[str, int]], seconds: int) -> str:
        return "".join(f"{word} {n}\n" for word, n in entries) + f"{seconds} s\n"

    found = compared(tmp_path, [text(lines, 1)] * 3, text(other, 1))
    assert found.warnings == [] and found.notes[0].startswith("the traced run: stdout: 1 lines")
    found = compared(tmp_path, [text(lines, i) for i in range(3)], text(other, 4))
    assert found.warnings == [] and found.notes[0].startswith("the traced run: stdout: 2 lines")


@RELAXED
@given(word=WORDS, other=WORDS, numbers=st.lists(NUMBERS, min_size=4, max_size=4, unique=True))
def test_changed_words_are_found_beside_volatile_numbers(
    tmp_path: Path, word: str, other: str, numbers: list[int]
) -> None:
    plain = [f"{word}{n}\n" for n in numbers[:3]]
    found = compared(tmp_path, plain, f"{other}{numbers[3]}\n")
    assert (found.warnings == []) == (word == other)
    assert all("line 1, differs" in warning for warning in found.warnings)


def test_missing_and_additional_lines_are_found(tmp_path: Path) -> None:
    plain = ["a\n1 s\n", "a\n2 s\n"]
    for run in ("a\n", "a\n3 s\nb\n", ""):
        (warning,) = compared(tmp_path, plain, run).warnings
        assert "lines where plain runs have 2" in warning


def test_what_cannot_be_compared_is_noted(tmp_path: Path) -> None:
    found = compared(tmp_path, ["seed abc\n", "seed xyz\n"], "seed other\n")
    assert found.warnings == [] and "1 lines differ between plain runs" in found.notes[0]
    found = compared(tmp_path, ["a\n", "a\nb\n"], "c\n")
    assert found.warnings == [] and "length differs" in found.notes[0]
    assert compared(tmp_path, ["a\n"], "a\n") == NOTHING


def test_standard_error_counts_too(tmp_path: Path) -> None:
    plain = [streams(tmp_path, f"plain-{i}", "same\n") for i in range(2)]
    found = compare_outputs(plain, streams(tmp_path, "run", "same\n", "warning: modified code\n"), "the traced run")
    assert "the traced run: stderr has 1 lines where plain runs have 0" in found.warnings[0]


def test_an_output_that_is_gone(tmp_path: Path) -> None:
    plain = [streams(tmp_path, f"plain-{i}", "same\n") for i in range(2)]
    run = streams(tmp_path, "run", "same\n")
    run.stderr.unlink()
    with pytest.raises(StorageError, match=r"run\.stderr"):
        compare_outputs(plain, run, "the traced run")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    plain = [streams(tmp_path, f"plain-{i}", "") for i in range(2)]
    run = streams(tmp_path, "run", "")
    for made in (*plain, run):
        made.stdout.write_bytes(bytes(range(256)))
    assert compare_outputs(plain, run, "the traced run") == NOTHING
    run.stdout.write_bytes(bytes(range(255)) + b"\0")
    assert compare_outputs(plain, run, "the traced run").warnings


def printed(folder: Path, run: str, text: str) -> Path:
    streams = output_streams(folder, run)
    streams.stdout.write_text(text)
    streams.stderr.touch()
    note_run(folder, run, [])
    return streams.stdout


def test_what_runs_print_alike_is_kept_once(tmp_path: Path) -> None:
    texts = {"a": "x" * 5000, "b": "y" * 5000, "c": "x" * 5000, "d": "y" * 5000, "e": "x" * 5001, "f": "x" * 5000}
    found = {run: printed(tmp_path, run, text) for run, text in texts.items()}
    assert {run: path.read_text() for run, path in found.items()} == texts
    assert len({path.stat().st_ino for path in found.values()}) == 3
    assert len({path.stat().st_ino for path in tmp_path.glob("*.stderr")}) == len(found), "empty ones take no room"
    assert not list(tmp_path.glob("*.partial"))
    # A run that is made again prints into a file of its own.
    printed(tmp_path, "a", "z" * 5000)
    assert found["c"].read_text() == texts["c"]


def test_what_runs_print_that_are_never_noted_is_kept_once_too(tmp_path: Path) -> None:
    for run in ("own-environment", "timed-again"):
        output_streams(tmp_path, run).stdout.write_text("x")
    noted = printed(tmp_path, "plain-0", "x")
    assert noted.stat().st_nlink == 3


def test_a_link_that_a_killed_build_left_is_no_obstacle(tmp_path: Path) -> None:
    printed(tmp_path, "a", "x")
    (tmp_path / "b.stdout.partial").write_text("left")
    assert printed(tmp_path, "b", "x").stat().st_nlink == 2 and not list(tmp_path.glob("*.partial"))


def test_outputs_of_which_parts_are_kept_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_START", 100)
    for run in ("a", "b"):
        assert printed(tmp_path, run, "x" * 101).stat().st_nlink == 1
    for run in ("c", "d"):
        assert printed(tmp_path, run, "x" * 100).stat().st_nlink == 1 + (run == "d")


def test_a_removed_output_takes_no_other_with_it(tmp_path: Path) -> None:
    kept = printed(tmp_path, "plain-0", "x" * 5000)
    removed = printed(tmp_path, "capture", "x" * 5000)
    assert kept.stat().st_nlink == 2
    remove_output(tmp_path, "capture")
    remove_output(tmp_path, "never-made")
    assert not removed.exists() and kept.read_text() == "x" * 5000
