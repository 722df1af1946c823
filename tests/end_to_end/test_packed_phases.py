# SPDX-License-Identifier: Apache-2.0
"""Builds keep the pages of their phases packed: of those in place there is one phase at a time, also after a crash."""

from __future__ import annotations

import fnmatch
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import Command, interrupt
from conftest import MakeProgram
from programs import build as compiled

from checkpoint.flat.file_names import PACKED
from probe.formats.choices import SelectionOptions
from probe.pipeline import capture, flatten, self_check, warmup
from probe.pipeline.build import build
from probe.pipeline.options import BuildOptions
from probe.pipeline.outputs import bounded_outputs
from reducer.packed_image import BLOCKS, TABLE, pages_in_place

pytestmark = pytest.mark.slow


def in_place(work: Path) -> list[str]:
    """Folders of the phases whose pages are there as they are; folders that go away meanwhile have none."""
    found = []
    for folder, _, names in os.walk(work):
        if (name := Path(folder).name).startswith("phase-"):
            found += [name for _ in fnmatch.filter(names, "pages-[0-9]*.img")]
    return sorted(found)


@pytest.mark.parametrize("how", ["direct", "criu"])
def test_what_is_printed_is_kept_once(how: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that prints more than it has memory."""
    work, numbers, unread = tmp_path / "work", tmp_path / "numbers", list[str | None]()

    def bounded(folder: Path, **run: str) -> AbstractContextManager[None]:
        unread.append(run["unread"])
        return bounded_outputs(folder, **run)

    monkeypatch.setattr(capture, "bounded_outputs", bounded)
    numbers.write_text("\n".join(map(str, range(1_000_000))))
    options = BuildOptions(
        interval=0.02, warmup=1, runs=0, repeats=2, capture=how, selection=SelectionOptions(max_phases=3)
    )
    argv = ["/usr/bin/gzip", "-9", "-c", str(numbers)]
    build(argv, tmp_path / "x.probe", options=options, work=work, cwd=str(tmp_path))
    printed = sorted(work.glob("*.stdout"))
    assert len(printed) > 2 and "capture.stdout" not in {path.name for path in printed}
    assert len({path.stat().st_ino for path in printed}) == 1 and unread == ["capture"]


@pytest.mark.parametrize("tried", [1, "auto"])
def test_one_phase_at_a_time(tried: Any, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, there = tmp_path / "work", list[tuple[str, list[str]]]()

    @contextmanager
    def noted(images: Path) -> Iterator[None]:
        with pages_in_place(images):
            there.append((images.name, in_place(work)))
            assert {path.stat().st_mode & 0o777 for path in images.glob("pages-*")} == {0o600}
            yield

    for stage in (flatten, self_check, warmup):
        monkeypatch.setattr(stage, "pages_in_place", noted)
    options = BuildOptions(
        interval=0.02, warmup=tried, runs=1, repeats=2, capture="direct", selection=SelectionOptions(max_phases=3)
    )
    built = build([str(compiled("sorter", builds)), "1"], tmp_path / "x.probe", options=options, work=work)
    phases = len(built.manifest.phases)
    assert len(there) >= phases * 3 and all(found == [name] for name, found in there)
    # One image is that of the phase; the others of the probe are where their pages are kept.
    packed = [path.parent.name for path in work.glob("phase-*/" + PACKED)]
    assert (in_place(work), len(packed), len(list(work.glob("**/kept-pages.*")))) == ([], phases, 2)
    kept, pages = (work / BLOCKS).stat().st_size, built.sizes.distinct_pages
    assert 0 < kept < 1.2 * pages * 4096
    held = [*work.glob("kept-pages.*"), *work.glob("phase-*/pages*"), *work.glob("phase-*/*.img")]
    held += [*work.glob("phase-*/state.json"), work / "state.json"]
    assert {path.stat().st_mode & 0o777 for path in held} == {0o600} and len(held) > 3 * phases


def test_a_killed_build_goes_on(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """What was in place is so no more, and damage to what is kept is named."""
    output, work = tmp_path / "out.probe", tmp_path / "work"
    arguments = ["build", "-o", output, "--interval", "20ms", "--max-phases", "2", "--work", work, "--resume"]
    arguments += ["--", program("nbody"), "150"]
    interrupt(command, command.start(*arguments), "self-check", signal.SIGKILL, child="direct_agent.py")
    assert len(in_place(work)) == 1
    for name in (BLOCKS, TABLE):
        whole = (work / name).read_bytes()
        (work / name).write_bytes(whole[: len(whole) // 2])
        said = command.refused(11, *arguments)
        assert "pages.packed: damaged: kept-pages" in said and "build without --resume" in said
        (work / name).write_bytes(whole)
    done = command(*arguments)
    assert done.returncode == 0 and in_place(work) == []
    assert [line for line in done.stderr.splitlines() if line.endswith("...")] == ["self-check ...", "pack ..."]
    assert command.json("run", "--repeat", "1", output)["prediction"]["seconds"] > 0
    assert json.loads((work / "reduced.json").read_text())


def test_checkpoints_by_criu_stay_as_they_are(builds: Path, tmp_path: Path) -> None:
    options = BuildOptions(interval=0.02, runs=1, repeats=1, capture="criu", selection=SelectionOptions(max_phases=2))
    built = build(
        [str(compiled("nbody", builds)), "150"], tmp_path / "x.probe", options=options, work=tmp_path / "work"
    )
    assert len(in_place(tmp_path / "work")) == len(built.manifest.phases)
    assert not list((tmp_path / "work").glob("**/kept-pages.*"))
