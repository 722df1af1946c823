# SPDX-License-Identifier: Apache-2.0
"""A program whose later runs read what its first one has left: it is traced once more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from native_profiles import INTERVAL
from programs import build
from tracing import program_of

from checkpoint.errors import Diverged, ProbeError, ProgramFailed, ProgramTooShort
from probe.node.measuring import away_from, measuring_cpu
from probe.pipeline import trace, validate
from probe.pipeline.build import build as build_probe
from probe.pipeline.options import BuildOptions
from probe.pipeline.reference import seen_in_trace
from probe.pipeline.runs import given_files
from probe.pipeline.runs.given_files import changes_named
from probe.pipeline.stage import Build
from probe.progress import Silent
from probe.work_folder import work_folder


@contextmanager
def begun(program: Path, folder: Path, *arguments: str, makes: tuple[str, ...] = ()) -> Iterator[Build]:
    """A build that has traced the program in that folder."""
    cpu = measuring_cpu()
    told = replace(program_of(program, *arguments), cwd=str(folder), makes=makes)
    with (
        work_folder(None, {}, resume=False) as work,
        away_from(cpu),
        changes_named(told.argv, told.cwd) as given,
    ):
        made = Build(told, BuildOptions(interval=INTERVAL, runs=0), work, None, Silent(), folder / "out", cpu)
        made.given = given
        trace.run(made, lambda _: None)
        made.reference = seen_in_trace(made.profile)
        yield made


@pytest.mark.timed
def test_it_is_traced_with_what_it_has_left(builds: Path, tmp_path: Path) -> None:
    with begun(build("resumes", builds), tmp_path, "200") as made:
        first = made.profile
        validate.run(made, lambda _: None)
    assert made.timed.intervals > 0.8 * made.profile.intervals
    assert made.profile.blocks.start.tolist() != first.blocks.start.tolist(), "the first run did other work"
    (note,) = (note for note in made.notes if "resumes.state" in note)
    assert note.endswith("the prediction is of a run that finds that")


@pytest.mark.timed
def test_it_is_traced_once_where_each_run_begins_without(builds: Path, tmp_path: Path) -> None:
    with begun(build("resumes", builds), tmp_path, "200", makes=("*.state",)) as made:
        first = made.profile
        validate.run(made, lambda _: None)
    assert made.timed.intervals > 0.8 * first.intervals
    assert made.profile.blocks.start.tolist() == first.blocks.start.tolist()
    assert not any("resumes.state" in note for note in made.notes)


@pytest.mark.timed
def test_where_nothing_was_left_it_is_refused(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_files, "MOST_NAMES", 0)
    (tmp_path / "other").touch()
    with begun(build("resumes", builds), tmp_path, "200") as made, pytest.raises(Diverged):
        validate.run(made, lambda _: None)


def test_files_that_were_left_are_named(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with changes_named(["it"], str(tmp_path)) as given:
        assert given.left() == []
        (tmp_path / "new").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("there")
        (tmp_path / "there").write_text("changed")
        assert given.left() == ["new"]
    assert given_files.GivenFiles().left() == []
    with changes_named(["it"], str(tmp_path / "nowhere")) as given:
        assert given.left() == []


@pytest.mark.parametrize("kind", [Diverged, ProgramFailed])
def test_a_refusal_says_what_would_help(kind: type[ProbeError], tmp_path: Path) -> None:
    with (
        pytest.raises(kind, match=r"^it went astray; an earlier run left new in its folder; .*--makes"),
        changes_named(["it"], str(tmp_path)),
    ):
        (tmp_path / "new").touch()
        raise kind("it went astray.")
    with pytest.raises(kind, match=r"^it went astray\.$"), changes_named(["it"], str(tmp_path)):
        raise kind("it went astray.")


def test_what_is_there_already_is_refused_before_anything_runs(builds: Path, tmp_path: Path) -> None:
    (tmp_path / "resumes.state").touch()
    words, options = [str(build("resumes", builds)), "1"], BuildOptions(makes=("resumes.*",))
    with pytest.raises(ProbeError, match=r"resumes.state: is there before the program runs"):
        build_probe(words, tmp_path / "it.probe", options=options, cwd=str(tmp_path))
    # An earlier run of a recorded program made it.
    with pytest.raises(ProgramTooShort):
        build_probe(words, tmp_path / "it.probe", options=options, cwd=str(tmp_path), expected=True)
    with pytest.raises(ProbeError, match="which is this build's own"):
        build_probe(words, tmp_path / "resumes.probe", options=options, cwd=str(tmp_path))
