# SPDX-License-Identifier: Apache-2.0
"""Hostile regions on kernels with older versions of landlock, which keep from less: the filter does the rest.

The restorer is compiled to ask for no more than such a version has. What it does not ask for the kernel lets through.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hostile_stage import UNSHARE, USERS, Stage, Victim, gone, said_of, stage, verdict, victim

from checkpoint import compiled
from checkpoint.flat.control import Option
from checkpoint.restore.direct_restore import landlock_version

__all__ = ["stage", "victim"]

VERSIONS = (1, 2, 3, 4, 5, 6)
KNOWS_TRUNCATING, KNOWS_SIGNALS = 3, 6
KINDS = ("contents", "metadata", "file_calls", "processes", "parent", "network", "remains")


def older(stage: Stage, version: int) -> Stage:
    """The same with a restorer that knows landlock up to `version`."""
    assert landlock_version() >= VERSIONS[-1], "this kernel's own landlock is older than what is tried"
    options = (*compiled.RESTORER_OPTIONS, f"-DNEWEST_LANDLOCK={version}")
    made = compiled.built(f"restorer-{version}", compiled.RESTORER.sources, options)
    program = stage.folder / f"restorer-{version}"
    shutil.copy(made, program)
    program.chmod(0o755)
    return replace(stage, restorer=program)


@USERS
@pytest.mark.parametrize("version", VERSIONS)
def test_no_attempt_succeeds(version: int, user: int, stage: Stage, victim: Victim) -> None:
    """Without namespaces, so that landlock and the filter are all there is."""
    before, there = victim.state(), older(stage, version)
    for kind in KINDS:
        said = said_of(there, stage.job(kind), user, (UNSHARE,))
        assert verdict(stage, kind, said) == "ok", kind
        assert gone(stage) and victim.state() == before, kind


@USERS
@pytest.mark.parametrize("version", VERSIONS)
def test_what_each_version_keeps_from_by_itself(version: int, user: int, stage: Stage, victim: Victim) -> None:
    """Without the filter. The first two let files be truncated, so the filter must see to that."""
    there = older(stage, version)
    said = said_of(there, stage.job("contents"), user, (UNSHARE,), without=Option.FILTER_CALLS)
    found = verdict(stage, "contents", said)
    assert found.startswith("ok") if version >= KNOWS_TRUNCATING else found == "by_open_truncating succeeded"
    assert (victim.file.read_text() == "precious") == (version >= KNOWS_TRUNCATING)


@pytest.mark.parametrize("user", [0])
@pytest.mark.parametrize("version", VERSIONS)
def test_signals_are_landlocks_from_the_sixth_on(version: int, user: int, stage: Stage, victim: Victim) -> None:
    there = older(stage, version)
    said_of(there, stage.job("processes", "quiet"), user, (UNSHARE,), without=Option.FILTER_CALLS)
    if version >= KNOWS_SIGNALS:
        assert victim.process.poll() is None
    else:
        # It was sent; where the machine is busy its end takes a moment.
        victim.process.wait(10)
    assert gone(stage, 0)
