# SPDX-License-Identifier: Apache-2.0
"""The folder of a build: one build at a time, never somebody else's files, nothing damaged believed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Command, interrupt, small_disk
from conftest import MakeProgram

from checkpoint.errors import ProbeError, StorageError, WorkFolderBusy
from checkpoint.flat.file_names import PACKED
from probe.pipeline.build import OPTIONS_OF_NO_FILE, STAGE_FILES
from probe.work_folder import StageFiles, work_folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", ["thesis.tex", "lock", "state.json", "phase-1", "profile.npz"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_foreign_folder_is_not_touched(name: str, resume: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / name).write_text('{"finished": [], "parameters": {}}')
    before = tree(tmp_path)
    with pytest.raises(StorageError, match="not a work folder"), work_folder(tmp_path, {}, resume=resume):
        pass
    assert tree(tmp_path) == before


def test_a_damaged_state_is_not_taken_for_a_new_folder(tmp_path: Path) -> None:
    with work_folder(tmp_path, {"a": 1}, resume=False) as folder:
        folder.write_json("reference.json", {"a": 1})
    state = tmp_path / "state.json"
    state.write_text(state.read_text()[:20])
    before = tree(tmp_path)
    for resume in (False, True):
        with pytest.raises(StorageError, match=r"state\.json: damaged"), work_folder(tmp_path, {"a": 1}, resume=resume):
            pass
    assert tree(tmp_path) == before


def test_a_folder_is_used_again(tmp_path: Path) -> None:
    with work_folder(tmp_path, {"a": (1, 2)}, resume=False) as folder:
        (tmp_path / "phase-0").mkdir()
        (tmp_path / "phase-0" / "pages-1.img").write_text("x")
        folder.finish("trace")
    with work_folder(tmp_path, {"a": (1, 2)}, resume=True) as folder:
        assert folder.is_finished("trace") and not folder.is_finished("reference")
    with work_folder(tmp_path, {"a": 2}, resume=False) as folder:
        assert not folder.is_finished("trace")
    assert {p.name for p in tmp_path.iterdir()} == {"lock", "state.json"}


def test_what_stages_took_is_known_when_a_build_goes_on(tmp_path: Path) -> None:
    """Of those that are finished: what is done again is counted anew."""
    stages = [StageFiles("trace", (), ()), StageFiles("select", (), ("size",))]
    with work_folder(tmp_path, {"options": {"size": 1}}, resume=False) as folder:
        folder.finish("trace", 10.0)
        folder.finish("select", 5.0)
        assert folder.seconds == 15.0
    with work_folder(tmp_path, {"options": {"size": 2}}, resume=True, stages=stages) as folder:
        assert folder.seconds == 10.0
        folder.finish("select", 7.0)
    with work_folder(tmp_path, {"options": {"size": 2}}, resume=True) as folder:
        assert folder.seconds == 17.0
    state = json.loads((tmp_path / "state.json").read_text())
    for wrong in ([], {"trace": "10"}, {"trace": -1.0}, {"trace": True}):
        (tmp_path / "state.json").write_text(json.dumps(state | {"seconds": wrong}))
        with pytest.raises(StorageError, match="damaged"), work_folder(
            tmp_path, {"options": {"size": 2}}, resume=True
        ):  # fmt: skip
            pass
    # The version before did not keep it.
    (tmp_path / "state.json").write_text(json.dumps({k: v for k, v in state.items() if k != "seconds"}))
    with work_folder(tmp_path, {"options": {"size": 2}}, resume=True) as folder:
        assert folder.seconds == 0.0 and folder.is_finished("trace")


def test_a_build_killed_while_it_opened_its_folder(tmp_path: Path) -> None:
    for left in ("lock", "state.partial"):
        (tmp_path / left).touch()
    with work_folder(tmp_path, {}, resume=True) as folder:
        assert not folder.is_finished("trace")


@pytest.mark.parametrize(
    ("now", "named"),
    [({"options": {"interval": 0.02}}, "options.interval"), ({"options": {"interval": 0.05}, "x": 1}, "x")],
)
def test_other_parameters_cannot_be_resumed(now: dict[str, object], named: str, tmp_path: Path) -> None:
    with work_folder(tmp_path, {"options": {"interval": 0.05}}, resume=False) as folder:
        folder.finish("trace")
    with pytest.raises(ProbeError, match=named), work_folder(tmp_path, now, resume=True):
        pass
    with work_folder(tmp_path, {"options": {"interval": 0.05}}, resume=True) as folder:
        assert folder.is_finished("trace")


def test_one_build_at_a_time(tmp_path: Path) -> None:
    with work_folder(tmp_path, {}, resume=False) as folder:
        folder.finish("trace")
        for resume in (False, True):
            with pytest.raises(WorkFolderBusy, match=str(tmp_path)), work_folder(tmp_path, {}, resume=resume):
                pass
        assert folder.is_finished("trace")


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="not a folder"), work_folder(path, {}, resume=False):
            pass


@pytest.mark.parametrize("how", ["everybody's", "another user's"])
def test_a_folder_that_others_may_write_to_is_refused(how: str, tmp_path: Path) -> None:
    """Links could be put there, for results to be written through them."""
    folder = tmp_path / "work"
    folder.mkdir()
    if how == "everybody's":
        folder.chmod(0o777)
    else:
        os.chown(folder, 65534, 65534)
    with pytest.raises(StorageError, match="a folder of your own as --work"), work_folder(folder, {}, resume=False):
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_of_the_user_who_became_root_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    monkeypatch.setenv("SUDO_UID", "65534")
    with work_folder(folder, {}, resume=False):
        pass


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Opened for writing it emptied what it led to."""
    precious, folder = tmp_path / "precious", tmp_path / "work"
    precious.write_text("precious")
    folder.mkdir()
    (folder / "lock").symlink_to(precious)
    with pytest.raises(StorageError, match="lock: is a link"), work_folder(folder, {}, resume=False):
        pass
    assert precious.read_text() == "precious"


def test_resuming_needs_a_folder(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    said = command.refused(1, "build", "--resume", "-o", tmp_path / "out", "--", program("nbody"))
    assert "--work" in said


def test_a_second_build_at_the_same_time(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    arguments = ["build", "-o", tmp_path / "out", "--interval", "20ms", "--work", tmp_path / "work"]
    arguments += ["--", program("nbody"), "2000"]
    with command.start(*arguments) as first:
        assert first.stderr is not None
        assert first.stderr.readline() == "trace ...\n"
        with command.start(*arguments) as second:
            _, said = second.communicate(timeout=30)
        assert second.returncode == 13 and "another build is working in this folder" in said
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 130


@dataclass(frozen=True)
class Finished:
    """A work folder with every stage finished but the self-check, and the command that goes on with it."""

    work: Path
    command: Command
    arguments: list[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, program: MakeProgram) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    command, work = Command(folder / "command"), folder / "work"
    arguments = ["build", "-o", str(folder / "out"), "--interval", "20ms", "--max-phases", "2", "--resume", "--json"]
    arguments += ["--work", str(work), "--", str(program("nbody")), "150"]
    interrupt(command, command.start(*arguments), "self-check", signal.SIGTERM)
    return Finished(work, command, arguments)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_text("{}" if path.suffix == ".json" else "")


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "name",
    ["profile.npz", "reference.json", "timing.npz", "selection.json", "captured.json", "reduced.json"],
)
@pytest.mark.parametrize("damage", [cut, emptied, removed])
def test_a_damaged_stage_is_named(name: str, damage: Callable[[Path], None], finished: Finished) -> None:
    damaged = finished.work / name
    whole = damaged.read_bytes()
    damage(damaged)
    try:
        done = finished.command(*finished.arguments)
        assert (done.returncode in (10, 11), done.stdout) == (True, ""), (done.returncode, done.stderr)
        assert name in done.stderr
    finally:
        damaged.write_bytes(whole)


def test_an_output_that_is_gone_is_named(finished: Finished) -> None:
    output = finished.work / "trace.stdout"
    whole = output.read_bytes()
    output.unlink()
    try:
        assert str(output) in finished.command.refused(10, *finished.arguments)
        output.write_bytes(b"x\n")
        done = finished.command(*finished.arguments)
        assert done.returncode == 0, done.stderr
        assert any(said.startswith("the traced run: stdout") for said in json.loads(done.stdout)["warnings"])
    finally:
        output.write_bytes(whole)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named(finished: Finished) -> None:
    state = finished.work / "state.json"
    pages = finished.work / json.loads((finished.work / "captured.json").read_text())[0]["folder"] / PACKED
    whole, stages = pages.read_bytes(), state.read_text()
    pages.write_bytes(whole[:-1])
    without = json.loads(stages)
    without["finished"].remove("reduce")
    state.write_text(json.dumps(without))
    try:
        assert f"{pages.parent.name}/" in finished.command.refused(11, *finished.arguments)
    finally:
        pages.write_bytes(whole)
        state.write_text(stages)


@pytest.mark.slow
def test_a_full_disk_under_the_probe(finished: Finished, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    output = finished.arguments.index("-o") + 1
    arguments = [*finished.arguments[:output], str(small / "out"), *finished.arguments[output + 1 :]]
    said = finished.command.refused(10, *arguments, prefix=small_disk(small, 100))
    assert str(small / "out") in said and "No space left" in said


def test_other_arguments_are_refused(finished: Finished) -> None:
    before = tree(finished.work)
    refused, arguments = finished.command.refused, finished.arguments
    assert "options.interval" in refused(1, *["30ms" if a == "20ms" else a for a in arguments])
    assert "program.argv" in refused(1, *["151" if a == "150" else a for a in arguments])
    assert tree(finished.work) == before


def test_options_of_later_stages_may_differ(tmp_path: Path) -> None:
    """The earlier stages stay finished; what the others left is gone, and nothing else."""
    first: dict[str, object] = {"interval": 0.05, "warmup": 1, "reduce": "drop", "repeats": 5, "selection": {"seed": 1}}
    later = {
        "select": ("selection.json",),
        "warm-up": ("warmup.json",),
        "capture": ("captured.json", "written-1", "phase-1/pages-1.img"),
        "reduce": ("reduced.json", "touched-1.bin", "phase-1-reduced/pages-1.img"),
        "flatten": ("flat.json", "flow.json", "phase-1/direct.img"),
        "synthesize": ("synthetic.json", "phase-1-synthetic/pages-1.img"),
    }
    kept = ("profile.npz", "reference.json", "timing.npz", "trace.stdout")
    changes = [
        ("selection", {"seed": 2}, 3),
        ("warmup", 2, 4),
        ("records_flow", True, 7),
        ("synthetic_budget", 5.0, 8),
        ("reduce", "none", 5),
        ("repeats", 3, 9),
        ("runs", 1, 9),
    ]
    stages = [stage.name for stage in STAGE_FILES]
    known = {"stages": STAGE_FILES, "concern_no_stage": OPTIONS_OF_NO_FILE}
    for option, value, finished in changes:
        with work_folder(tmp_path, {"options": first}, resume=False) as folder:
            for stage in stages:
                folder.finish(stage)
        for name in (*kept, *(name for names in later.values() for name in names)):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        for _ in range(2):
            with work_folder(tmp_path, {"options": {**first, option: value}}, resume=True, **known) as folder:
                assert [s for s in stages if folder.is_finished(s)] == stages[:finished], option
            gone = [name for stage in stages[finished:] for name in later[stage]]
            for name in (*kept, *(name for names in later.values() for name in names)):
                # A whole folder goes with the stage that made it.
                lost = name in gone or (finished < 6 and name.startswith("phase-"))
                assert (tmp_path / name).exists() != lost, (option, name)


def test_a_warm_up_tried_by_the_version_before_is_finished(tmp_path: Path) -> None:
    """Its capture stage wrote the file, and the state does not name the stage."""
    for there in (False, True):
        with work_folder(tmp_path, {}, resume=False) as folder:
            folder.finish("select")
        if there:
            (tmp_path / "warmup.json").write_text("{}")
        with work_folder(tmp_path, {}, resume=True) as folder:
            assert folder.is_finished("warm-up") == there


def test_another_program_under_the_same_name(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """What the work folder knows of the program is not applied to a newer one."""
    mine = tmp_path / "mine"
    mine.write_bytes(program("nbody").read_bytes())
    mine.chmod(0o755)
    arguments = ["build", "-o", tmp_path / "out", "--interval", "20ms", "--resume", "--work", tmp_path / "work"]
    arguments += ["--", mine, "150"]
    interrupt(command, command.start(*arguments), "reference", signal.SIGTERM)
    mine.unlink()
    mine.write_bytes(program("sorter").read_bytes())
    mine.chmod(0o755)
    said = command.refused(7, *arguments)
    assert str(mine) in said and "changed since it was traced" in said


_SHELLS: tuple[dict[str, str], ...] = (
    {"SHLVL": "1", "_": "/usr/bin/probe", "OLDPWD": "/", "SSH_CLIENT": "10.0.0.1 1 22", "SSH_TTY": "/dev/pts/1"},
    {"SHLVL": "3", "_": "/usr/bin/env", "OLDPWD": "/tmp", "SSH_CONNECTION": "10.0.0.2 1 10.0.0.3 22", "TERM": "dumb"},
)


@pytest.mark.slow
def test_the_environment_comes_from_the_folder(command: Command, tmp_path: Path, program: MakeProgram) -> None:
    """Killed at seeded random moments, each time gone on with from another shell, the build comes to its end."""
    work, output = tmp_path / "work", tmp_path / "out.probe"
    arguments = ["build", "-o", output, "--interval", "20ms", "--max-phases", "2", "--work", work, "--resume"]
    arguments += ["--scrub-env", "SECRET*", "--", program("nbody"), "150"]
    choose = random.Random(11)
    began, stored = set[str](), list[dict[str, str]]()
    for number in range(_KILLS):
        shell = {**_SHELLS[number % 2], "SECRET": "x"}
        with command.start(*arguments, environment=shell) as running:
            # A build takes some ten seconds, or on a slow host all moments lie in two stages; closer where it is young.
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(choose.uniform(0.5, 3.0 + number))
            running.kill()
            _, said = running.communicate(timeout=30)
        began |= {line[: -len(" ...")] for line in said.splitlines() if line.endswith(" ...")}
        assert "other parameters" not in said and "Traceback" not in said, said
        command.nothing_left()
        states = [json.loads(path.read_text()) for path in work.glob("state.json")]
        stored += [state["parameters"]["program"]["env"] for state in states if state["finished"]]
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert len(began) > 1, began
    stored.append(json.loads((work / "state.json").read_text())["parameters"]["program"]["env"])
    assert len(stored) > 1 and stored == stored[:1] * len(stored) and "SECRET" not in stored[0]
    assert command.json("run", "--repeat", "1", output)["prediction"]["seconds"] > 0
    # What is to be taken out now and is in there already cannot be taken out any more.
    assert "SSH_C" in command.refused(1, *arguments[:-3], "--scrub-env", "SSH_*", *arguments[-3:])


_KILLS = 8


def test_an_environment_given_on_purpose_must_be_the_same(tmp_path: Path) -> None:
    stored = {"program": {"env": {"A": "1"}}, "options": {}}
    with work_folder(tmp_path, stored, resume=False) as folder:
        folder.finish("trace")
    other = {"program": {"env": {"A": "2"}}, "options": {}}
    with pytest.raises(ProbeError, match=r"program\.env\.A"), work_folder(tmp_path, other, resume=True):
        pass
    with work_folder(tmp_path, other, resume=True, kept=("program.env",)) as folder:
        assert folder.parameters == stored and folder.is_finished("trace")
    assert json.loads((tmp_path / "state.json").read_text())["parameters"] == stored


def test_a_folder_of_another_user_is_not_gone_on_with(tmp_path: Path) -> None:
    """The environment in there decides what code the program is started with."""
    with work_folder(tmp_path, {"a": 1}, resume=False):
        pass
    os.chown(tmp_path / "state.json", 65534, 65534)
    with pytest.raises(StorageError, match="another user"), work_folder(tmp_path, {"a": 1}, resume=True):
        pass
