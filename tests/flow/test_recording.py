# SPDX-License-Identifier: Apache-2.0
"""Phases whose flow is not recorded, and their reasons."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from checkpoint.flat.image import NAME, FlatImage, Header, Thread, encode
from probe.formats.checkpoints import FlatPhase
from probe.pipeline import flatten


def test_phases_of_several_threads_have_no_flow(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(encode(FlatImage(Header(), files=["/bin/solver"], threads=[Thread()])))
    job = cast(Any, SimpleNamespace(images=tmp_path))
    found = flatten._flow(job, FlatPhase(3, ""), tmp_path, None)
    assert found.flow is None and found.missing.startswith("several threads work in it")


def test_phases_that_cannot_be_flattened_have_no_flow(tmp_path: Path) -> None:
    found = flatten._flow(cast(Any, None), FlatPhase(3, "a shadow stack"), tmp_path, None)
    assert found.flow is None and found.missing == "a shadow stack"
