# SPDX-License-Identifier: Apache-2.0
"""What comes first, the timing run or a look at the traced one's phases: whichever may refuse sooner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probe.formats.choices import SECONDS
from probe.pipeline import validate


class Looked(Exception):
    pass


@pytest.mark.parametrize(
    ("seconds", "at_once", "looks"), [(1.0, False, False), (4.9, False, False), (6.0, False, True), (1.0, True, True)]
)
def test_phases_of_a_short_traced_run_are_not_chosen(
    seconds: float, at_once: bool, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*_: object) -> None:
        raise Looked

    monkeypatch.setattr(validate, "candidates", looked)
    build: Any = SimpleNamespace(
        profile=SimpleNamespace(unit=SECONDS), options=SimpleNamespace(points=None),
        plan=SimpleNamespace(at_once=at_once), reference=SimpleNamespace(wall=(seconds,)),
    )  # fmt: skip
    if looks:
        with pytest.raises(Looked):
            validate._seen_in_trace(build)
    else:
        assert validate._seen_in_trace(build) is None
