# SPDX-License-Identifier: Apache-2.0
"""The direct restorer that is run: one's own, never that of a probe's author unless asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from checkpoint.errors import NodeUnfit, StorageError, ToolMissing
from probe.formats.phase_record import DIRECT
from probe.node.measuring import Restorers
from probe.node.phases import AUTO, RESTORER_NAME, restorers_here

OWN, AUTHORS = b"one's own", b"the author's"


class Probe:
    """A probe that carries a restorer other than one's own."""

    data_names: tuple[str, ...] = (RESTORER_NAME,)

    def read_data(self, name: str) -> bytes:
        return {RESTORER_NAME: AUTHORS}[name]


class Empty(Probe):
    data_names = ()


def missing() -> bytes:
    raise ToolMissing("no compiler")


def here(folder: Path, archive: Any, wanted: str, own: Any = lambda: OWN, carried: bool = False) -> Restorers:
    return restorers_here(
        archive, folder, wanted, own_restorer=own, carried_restorer=carried, only_recorded_calls=False,
        touch_in_order=False,
    )  # fmt: skip


@pytest.mark.parametrize("wanted", [AUTO, DIRECT])
@pytest.mark.parametrize("archive", [Probe(), Empty()])
def test_ones_own_is_run(wanted: str, archive: Probe, tmp_path: Path) -> None:
    found = here(tmp_path, archive, wanted).direct
    assert found is not None and found.read_bytes() == OWN and found.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("own", [missing, lambda: OWN])
def test_the_authors_is_run_where_asked_for(own: Any, tmp_path: Path) -> None:
    found = here(tmp_path, Probe(), DIRECT, own, carried=True).direct
    assert found is not None and found.read_bytes() == AUTHORS


def test_the_authors_is_not_run_for_want_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolMissing):
        here(tmp_path, Probe(), DIRECT, missing)
    assert here(tmp_path, Probe(), AUTO, missing).direct is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolMissing):
        here(tmp_path, Probe(), AUTO, missing)
    assert list(tmp_path.iterdir()) == []


def test_a_probe_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeUnfit, match="leave --carried-restorer out"):
        here(tmp_path, Empty(), DIRECT, carried=True)


def test_a_full_disk_is_named_with_its_folder(tmp_path: Path) -> None:
    """Where the node's last member filled it while the restorer was still to be written."""
    (tmp_path / "direct-restorer").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=f"No space left.*{len(OWN)} bytes are needed in {tmp_path}.*: make room"):
        here(tmp_path, Empty(), DIRECT)
