# SPDX-License-Identifier: Apache-2.0
"""Work folders of builds: of all phases' whole copies no more than one is there at a time."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import build as compiled

import probe.pipeline.reduce
from checkpoint.capture.by_criu import dump_process
from checkpoint.capture.direct import Captured, capture_process
from probe.formats.choices import SelectionOptions
from probe.pipeline.build import build
from probe.pipeline.options import BuildOptions
from probe.pipeline.runs import standing
from probe.progress import Lines


def whole_copies(work: Path) -> list[str]:
    """Folders of phases with all that was captured, of warm-ups that are tried too."""
    return sorted(
        path.parent.name for path in work.rglob("phase-*/pages-*.img") if not path.parent.name.endswith("reduced")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "capture"),
    [("drop", "direct"), ("none", "direct"), ("little memory", "direct"), ("drop", "criu"), ("little memory", "criu")],
)
def test_phase_by_phase(case: str, capture: str, builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, there, said = tmp_path / "work", [], io.StringIO()

    def counting(take: Callable[..., Captured]) -> Callable[..., Captured]:
        def counted(*arguments: Any) -> Captured:
            done = take(*arguments)
            there.append(len(whole_copies(work)))
            return done

        return counted

    monkeypatch.setattr(standing, "capture_process", counting(capture_process))
    monkeypatch.setattr(standing, "dump_process", counting(dump_process))
    if case == "little memory":
        monkeypatch.setattr(probe.pipeline.reduce, "available_memory", lambda: 1 << 20)
    options = BuildOptions(
        interval=0.01, capture=capture, runs=1, repeats=1, reduce="none" if case == "none" else "drop",
        selection=SelectionOptions(max_phases=3),
    )  # fmt: skip
    built = build(
        [str(compiled("sorter", builds)), "1"], tmp_path / "x.probe", options=options, work=work, display=Lines(said)
    )
    (room,) = re.findall(
        rf"^{work}: grows by (.*) GB at most \(the program has (.*) GB of", said.getvalue(), re.MULTILINE
    )
    assert 0.0 < float(room[1]) < float(room[0])
    assert len(there) == len(built.manifest.phases) > 1
    captured = json.loads((work / "captured.json").read_text())
    assert all(0.0 < c["copying"] < c["standing"] for c in captured)
    if case == "little memory":
        assert there == list(range(1, len(there) + 1)) and whole_copies(work) == [c["folder"] for c in captured]
    else:
        assert set(there) == {1} and whole_copies(work) == []
        assert all(c["folder"] == c["reduced"]["folder"] for c in captured)
