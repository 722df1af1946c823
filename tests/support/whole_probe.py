# SPDX-License-Identifier: Apache-2.0
"""A small probe to trim, and what must hold of a trimmed one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from made_probe import changed
from small_archive import contents, make_checkpoint

from probe.contents.carried_files import private_path
from probe.formats.manifest import (
    Boundaries,
    Manifest,
    NodeRecord,
    PrivateFile,
    ProgramRecord,
    SelectionRecord,
    TimingRecord,
    TracingRecord,
)
from probe.formats.phase_record import CheckpointRecord, Events, InRun, PhaseRecord, Times
from probe.formats.reference import Reference
from reducer.archive import ContainedFile, PhaseCheckpoint, open_probe, write_probe
from reducer.member_table import PAGE_SIZE

SHARES = {0: 0.05, 1: 0.5, 2: 0.31, 3: 0.11}
WEIGHTS = {0: 0.9, 1: 0.02, 2: 0.03, 3: 0.05}
"""By weight phase 0 is the most important, by time the least."""


def record(phase: int, **values: Any) -> PhaseRecord:
    base = PhaseRecord(
        id=phase, representative=phase, intervals=3, weight=WEIGHTS.get(phase, 0.1), time_share=SHARES.get(phase, 0.1),
        spread=0.01, work=1e6, warmup=1, in_run=InRun(float(phase), 0.01, 0.01), events=Events(1, 2, 3),
        checkpoint=CheckpointRecord(900, 300, 300, raw_bytes=900 * PAGE_SIZE + 1000 + phase),
        criu=Times((0.01,) * 3, (0.01,) * 3, 0.01),
    )  # fmt: skip
    return replace(base, **values)


def manifest_of(phases: Sequence[PhaseRecord], **values: Any) -> Manifest:
    reference = Reference((1.0,) * 3, (1.0,) * 3, 0.0, (1.0, 1.0), "cpu", (1.0,) * 2, (1.0,) * 2)
    base = Manifest(
        program=ProgramRecord(("tool",), "/tool", "/", "/dev/null", "x86-64-v3", (), ("/out",)),
        tracing=TracingRecord("native", "seconds", 0.01, 1.0, sites=1, removed_sites=0, install_seconds=0.1),
        timing=TimingRecord(100, 1.0, 1.0, Boundaries(99)), reference_node=NodeRecord(), reference=reference,
        work_unit="x", total_work=1e8, phases=tuple(phases),
        selection=SelectionRecord(seed=1, dropped_time_share=0.03, error=0.02, held_out_error=0.03),
        raw_bytes=sum(p.checkpoint.raw_bytes for p in phases),
    )  # fmt: skip
    return cast("Manifest", changed(base, **values))


def memory(rng: random.Random, pages: int) -> bytes:
    """Pages as programs have them: half random, half packing well."""
    return b"".join(
        rng.randbytes(PAGE_SIZE) if rng.random() < 0.5 else (b"%08d" % rng.randrange(1000)) * (PAGE_SIZE // 8)
        for _ in range(pages)
    )


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A probe of four phases with common pages, a file, and a file that phases 0 and 1 write."""
    rng = random.Random(5)
    common = memory(rng, 200)
    checkpoints, private, files, data = [], [], [], {"profile": b"[]"}
    (tmp_path / "tool").write_bytes(rng.randbytes(5000))
    files.append(ContainedFile("/tool", tmp_path / "tool", 0o755, "program"))
    for phase in SHARES:
        folder = make_checkpoint(tmp_path / f"phase-{phase}", [], mm=rng.randbytes(2000))
        own = memory(rng, 100 + 150 * phase)
        (folder / "pages-1.img").write_bytes(
            common[phase * PAGE_SIZE :] + own + bytes(20 * PAGE_SIZE) + own[:PAGE_SIZE]
        )
        checkpoints.append(PhaseCheckpoint(phase, folder))
        data[f"touched-{phase}"] = rng.randbytes(800)
        if phase < 2:
            copy = tmp_path / f"written-{phase}"
            copy.write_bytes(b"written %d" % phase)
            private.append(PrivateFile(phase, "/log", "0" * 64, 0o644))
            files.append(ContainedFile(private_path(private[-1]), copy, 0o644, "output"))
    manifest = manifest_of([record(phase) for phase in SHARES], files__private=tuple(private))
    write_probe(tmp_path / "whole.probe", manifest.to_json(), checkpoints, files, data)
    return tmp_path / "whole.probe"


def check_valid(path: Path, kept: Sequence[int], scratch: Path, originals: Path) -> Manifest:
    """The probe at `path` is whole, and its phases `kept` are those of the probe it was made from."""
    with open_probe(path) as probe:
        probe.verify()
        manifest = Manifest.from_json(probe.manifest)
        assert [p.id for p in probe.phases] == sorted(kept) == [p.id for p in manifest.phases]
        for phase in sorted(kept, reverse=True):
            probe.extract_phase(phase, scratch / str(phase))
            assert contents(scratch / str(phase)) == contents(originals / f"phase-{phase}")
    shutil.rmtree(scratch)
    return manifest
