# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interruption import interrupted_after

from checkpoint import recorded_calls


def test_an_interruption_while_calls_are_watched_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder could not be removed while the child that watches still put files there."""

    def watch_on(_job: Any, _spec: Any, _stamps: Any, _stubs: Any, folder: Path, _writer: int, _parent: int) -> None:
        end = time.monotonic() + 20
        for number in itertools.cycle(range(500)):
            try:
                (folder / f"w{number}").touch()
            finally:
                if time.monotonic() > end or not folder.exists():
                    os._exit(0)

    monkeypatch.setattr(recorded_calls, "_report", watch_on)
    monkeypatch.setattr(recorded_calls, "direct_spec", lambda *_: {})
    monkeypatch.setattr(recorded_calls, "_stub_areas", lambda _: [])
    with interrupted_after(0.3):
        recorded_calls.record_calls(
            SimpleNamespace(phase=1),  # type: ignore[arg-type]
            SimpleNamespace(stamps=[]),  # type: ignore[arg-type]
            tmp_path, tmp_path, scratch=tmp_path,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
