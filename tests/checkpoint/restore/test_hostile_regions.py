# SPDX-License-Identifier: Apache-2.0
"""Regions that do harm (tests/programs/hostile.c), as root and as an ordinary user: nothing outside changes, nothing of
them lives on. Every guard is tried without the others, too."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from direct_runs import NOBODY
from hostile_stage import (
    KINDS,
    LANDLOCK,
    NODES,
    OF_FILES,
    UNSHARE,
    USERS,
    Stage,
    Victim,
    gone,
    said_of,
    stage,
    verdict,
    victim,
)

from checkpoint.compiled import restorer
from checkpoint.errors import PhaseFailed
from checkpoint.flat.control import Option
from checkpoint.flat.image import NAME, decode, encode
from checkpoint.restore import direct_restore, isolation
from checkpoint.restore.criu_restore import RestoreJob
from checkpoint.restore.direct_restore import DirectAgent

__all__ = ["stage", "victim"]


def is_in_private_view(kind: str, refused: tuple[int, ...]) -> bool:
    return LANDLOCK in refused and UNSHARE not in refused and kind in OF_FILES


@USERS
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_attempt_succeeds(kind: str, node: str, user: int, stage: Stage, victim: Victim) -> None:
    refused = NODES[node]
    # In a view of its own it may do to files what it likes.
    quiet = ("quiet",) * is_in_private_view(kind, refused)
    before = victim.state()
    said = said_of(stage, stage.job(kind, *quiet), user, refused)
    assert gone(stage) and victim.state() == before
    assert verdict(stage, kind, said) == "ok"


@USERS
@pytest.mark.parametrize("kind", KINDS)
def test_no_attempt_succeeds_in_a_private_view(kind: str, user: int, stage: Stage, victim: Victim) -> None:
    """The image says that it changes files by their paths, and so it may; of all else as little as elsewhere."""
    quiet = ("quiet",) * (kind in OF_FILES)
    job = changed(stage.job(kind, *quiet), stage, calls=[])
    before = victim.state()
    said = said_of(stage, job, user)
    assert gone(stage) and victim.state() == before
    assert verdict(stage, kind, said) == "ok"


def changed(job: RestoreJob, stage: Stage, calls: list[int]) -> RestoreJob:
    """The same phase with another image: it changes paths, and has made these calls."""
    folder = stage.folder / f"changed-{job.images.parent.name}-{len(calls)}"
    if not folder.exists():
        shutil.copytree(job.images, folder)
        flat = decode(folder / NAME)
        flat.header.changes_paths = not calls
        flat.calls = calls
        (folder / NAME).write_bytes(encode(flat))
    return replace(job, images=folder)


@USERS
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_calls_only_take_away(kind: str, user: int, stage: Stage, victim: Victim) -> None:
    """A list of all calls, as an author of ill will would make it, allows nothing more."""
    before = victim.state()
    job = changed(stage.job(kind), stage, list(range(470)))
    said = said_of(stage, job, user, only_recorded_calls=True)
    assert gone(stage) and victim.state() == before
    assert verdict(stage, kind, said) == "ok"


@USERS
def test_many_calls_a_second_leave_no_filter_out(user: int, stage: Stage, victim: Victim) -> None:
    job = changed(stage.job("network"), stage, [0])
    flat = decode(job.images / NAME)
    flat.header.calls_made = 10_000_000
    (job.images / NAME).write_bytes(encode(flat))
    try:
        assert verdict(stage, "network", said_of(stage, job, user)) == "ok"
    finally:
        shutil.rmtree(job.images)


@USERS
@pytest.mark.parametrize("refused", [(), (LANDLOCK,)], ids=["landlock", "private view"])
def test_devices_are_away_where_there_are_namespaces(
    refused: tuple[int, ...], user: int, stage: Stage, victim: Victim
) -> None:
    """But for those that keep nothing."""
    assert verdict(stage, "devices", said_of(stage, stage.job("devices"), user, refused)) == "ok"


# Each guard without the others.


@USERS
@pytest.mark.parametrize("refused", [(), (UNSHARE, LANDLOCK)], ids=["namespaces", "subreaper"])
def test_without_a_filter_nothing_lives_on(refused: tuple[int, ...], user: int, stage: Stage, victim: Victim) -> None:
    """Sixty children in sessions of their own, which no longer die with their parent."""
    said_of(stage, stage.job("living", "quiet"), user, refused, without=Option.FILTER_CALLS)
    assert gone(stage, 0)


def test_an_ordinary_user_gets_no_more_processes(stage: Stage, tmp_path: Path) -> None:
    """RLIMIT_NPROC: none of its attempts to fork succeeds, and it gets as far as /bin/true. Root has no such limit."""
    stage.armed.write_text(f"1 {tmp_path}\n")
    stage.armed.chmod(0o644)
    try:
        said = said_of(stage, stage.job("living"), NOBODY, (UNSHARE,), without=Option.FILTER_CALLS)
    finally:
        stage.armed.unlink()
    assert "exited with status 0" in said
    assert gone(stage, 0)


@USERS
@pytest.mark.parametrize("refused", [(LANDLOCK,), (UNSHARE,)], ids=["namespaces", "landlock"])
def test_without_a_filter_no_signal_arrives(refused: tuple[int, ...], user: int, stage: Stage, victim: Victim) -> None:
    if refused == (UNSHARE,) and direct_restore.landlock_version() < 6:
        pytest.skip("this kernel's landlock knows no signals")
    for kind in ("processes", "parent"):
        said_of(stage, stage.job(kind, "quiet"), user, refused, without=Option.FILTER_CALLS)
        assert victim.process.poll() is None
    assert gone(stage, 0)


@USERS
def test_without_a_filter_nothing_stays_in_ipc(user: int, stage: Stage, victim: Victim) -> None:
    before = victim.state()["ipc"]
    said_of(stage, stage.job("remains", "quiet"), user, without=Option.FILTER_CALLS)
    assert victim.state()["ipc"] == before


@USERS
def test_without_a_filter_contents_are_landlocks(user: int, stage: Stage, victim: Victim) -> None:
    before = victim.state()
    said = said_of(stage, stage.job("contents"), user, without=Option.FILTER_CALLS)
    assert verdict(stage, "contents", said).startswith("ok") and victim.state() == before


@pytest.mark.parametrize("user", [0])
@pytest.mark.parametrize("refused", [(), (UNSHARE, LANDLOCK)], ids=["everything", "neither"])
def test_without_a_filter_root_keeps_no_rights(
    refused: tuple[int, ...], user: int, stage: Stage, victim: Victim
) -> None:
    """Namespaces of its own do not take them: names, clocks and mounts are reached with root's rights."""
    said = said_of(stage, stage.job("rights"), user, refused, without=Option.FILTER_CALLS)
    assert verdict(stage, "rights", said).startswith("ok")


# Supervisors, and time.


@pytest.mark.parametrize("user", [0])
@pytest.mark.parametrize("kind", ["loops", "sleeps"])
def test_an_endless_region_costs_its_own_limit(
    kind: str, user: int, stage: Stage, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_restore, "region_limit", lambda _job: 1.0)
    job, begun = stage.job(kind), time.monotonic()
    assert "no region end within 1 s" in said_of(stage, job, user)
    assert time.monotonic() - begun < 30 and gone(stage, 0)


def test_an_agent_that_is_killed_is_no_missing_tool(stage: Stage, tmp_path: Path) -> None:
    """It was exit code 16 instead of 12."""
    with DirectAgent(stage.job("sleeps"), restorer(), scratch=tmp_path) as agent:
        os.kill(agent._agent._process.pid, signal.SIGKILL)
        with pytest.raises(PhaseFailed, match="ended without an answer"):
            agent.repeat()


@pytest.mark.parametrize("user", [NOBODY])
def test_a_private_view_is_small(user: int, stage: Stage, victim: Victim) -> None:
    """A gigabyte by paths ends in memory that is limited, and nothing reaches the disk."""
    job = changed(stage.job("fills"), stage, [])
    assert said_of(stage, job, user) == "ok"
    assert not list(Path("/tmp").glob("fill-*"))


def test_processes_without_parents_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on kernels that do not list a process's children."""
    real = open

    def without_children(path: Any, *a: Any, **k: Any) -> Any:
        if str(path).endswith("/children"):
            raise FileNotFoundError(path)
        return real(path, *a, **k)

    def action() -> str:
        monkeypatch.setattr("builtins.open", without_children)
        for _ in range(5):
            if not os.fork():
                os.setsid()
                if not os.fork():
                    time.sleep(60)
                os._exit(0)
        return "well"

    def ended() -> bool:
        isolation.apart(0, action)
        return isolation.children() != []

    begun = time.monotonic()
    assert isolation.works(ended) and time.monotonic() - begun < 10
