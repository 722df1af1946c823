# SPDX-License-Identifier: Apache-2.0
"""Measure what reducing costs and keeps, from the work folder of a finished build (`probe build --work DIR`).

    python scripts/benchmarks/small_probes.py DIR WHOLE PROBE [--repeat N]

WHOLE is a copy of DIR in which the same build was resumed with `--reduce none`, since DIR has no whole checkpoints.
Every phase is restored as CRIU wrote it and reduced, in turns, so that other load meets both alike; the time of a
region is its CPU time. Speeds are of this process's CPU time, on the pages as CRIU wrote them. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from checkpoint.criu.images import read_checkpoint
from checkpoint.criu.tool import find_criu
from checkpoint.restore.criu_restore import RestoreJob, time_phase
from probe.contents.captured_files import written_copies
from probe.formats.checkpoints import CapturedPhase, ReducedPhase
from probe.formats.manifest import Manifest
from probe.node.measuring import away_from, measuring_cpu
from reducer.archive import PhaseCheckpoint, write_probe
from reducer.page_store import PageStore
from reducer.reduction import reduce_checkpoint
from reducer.touched_set import TouchedSet, pages_to_keep
from reducer.unpack import open_probe


def jobs_of(folder: Path, cwd: str) -> list[tuple[RestoreJob, ReducedPhase]]:
    """The phases of the build in `folder`."""
    captured = [CapturedPhase.from_json(c) for c in json.loads((folder / "captured.json").read_text())]
    reduced = [ReducedPhase.from_json(r) for r in json.loads((folder / "reduced.json").read_text())]
    outputs = tuple(str(folder / f"capture.{name}") for name in ("stdout", "stderr"))
    found = []
    for phase, less in zip(captured, reduced, strict=True):
        written = [(str(copy), path) for path, copy in written_copies(folder, phase).items()]
        job = RestoreJob(
            phase.phase, folder / phase.folder, outputs, (cwd,), (), written,
            phase.warm_event, phase.start_event, phase.end_event, 1.0,
        )  # fmt: skip
        found.append((job, less))
    return found


def ratio(job: RestoreJob, small: RestoreJob, less: ReducedPhase, repeats: int) -> dict[str, Any]:
    """CPU time of the region reduced over whole, from repeats taken in turns."""
    criu, cpu = find_criu(), measuring_cpu()
    sides: tuple[list[float], list[float]] = ([], [])
    restores: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory(dir=job.images.parent) as scratch, away_from(cpu):
        for number in range(repeats):
            # Whichever comes second finds the page cache and the processor as the first left them.
            for side in (0, 1) if number % 2 else (1, 0):
                (timed,) = time_phase((job, small)[side], criu, repeats=1, scratch=Path(scratch), cpu=cpu)
                sides[side].append(timed.cpu)
                restores[side].append(timed.restore)
    whole, reduced = (statistics.median(values) for values in sides)
    return {
        "phase": job.phase,
        "whole_ms": whole * 1e3,
        "reduced_ms": reduced * 1e3,
        "ratio": reduced / whole,
        "ratio_of_least": min(sides[1]) / min(sides[0]),
        "spread": statistics.stdev(sides[0]) / whole if repeats > 1 else None,
        "restore_whole_s": statistics.median(restores[0]),
        "restore_reduced_s": statistics.median(restores[1]),
        "raw_bytes": less.raw_bytes,
        "kept": less.kept_pages / less.raw_pages,
    }


def per_second(size: int, action: Callable[[], Any], repeats: int = 3) -> float:
    """Bytes per second of CPU time, the best of a few runs."""
    spent = []
    for _ in range(repeats):
        begun = time.process_time()
        action()
        spent.append(time.process_time() - begun)
    return size / min(spent)


def speeds(job: RestoreJob, touched_pages: Path) -> dict[str, float]:
    """Scan and hash, strip both ways, pack and unpack: bytes of raw pages per CPU second."""
    images = read_checkpoint(job.images)
    size = images.pages_image.stat().st_size
    touched = np.fromfile(touched_pages, dtype="<u8")
    found = TouchedSet(touched, np.zeros(len(touched), dtype=bool))

    def scan() -> None:
        with PageStore() as store:
            store.add_image(images.pages_image, lambda _: None)

    with tempfile.TemporaryDirectory(dir=job.images.parent) as made:
        folder = Path(made)
        names = (str(n) for n in range(1000))

        def strip(how: Any) -> None:
            reduce_checkpoint(images, pages_to_keep(images, found), folder / next(names), how)

        def pack() -> None:
            write_probe(folder / "packed", {}, [PhaseCheckpoint(job.phase, job.images)])

        def unpack() -> None:
            with open_probe(folder / "packed", folder) as archive:
                archive.extract_phase(job.phase, folder / next(names))

        return {
            "scan_and_hash": per_second(size, scan),
            "strip_drop": per_second(size, lambda: strip("drop")),
            "strip_zero": per_second(size, lambda: strip("zero")),
            "pack_whole": per_second(size, pack, 2),
            "unpack_whole": per_second(size, unpack, 2),
            "packed_share": (folder / "packed").stat().st_size / size,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("whole", type=Path)
    parser.add_argument("probe", type=Path)
    parser.add_argument("--repeat", type=int, default=11)
    options = parser.parse_args()
    work = options.work.absolute()
    with open_probe(options.probe) as archive:
        program = Manifest.from_json(archive.manifest).program
    reduced, whole = jobs_of(work, program.cwd), jobs_of(options.whole.absolute(), program.cwd)
    load = os.getloadavg()[0]
    phases = [ratio(job, small, less, options.repeat) for (job, _), (small, less) in zip(whole, reduced, strict=True)]
    ratios = [phase["ratio"] for phase in phases]
    largest = max(whole, key=lambda pair: pair[1].raw_bytes)
    raw, size = sum(less.raw_bytes for _, less in reduced), options.probe.stat().st_size
    answer = {
        "program": list(program.argv),
        "raw_bytes": raw,
        "largest_raw_bytes": largest[1].raw_bytes,
        "probe_bytes": size,
        "smaller": 1 - size / raw,
        "median_change": statistics.median(ratios) - 1,
        "worst_change": max((r - 1 for r in ratios), key=abs),
        "speeds": speeds(largest[0], work / f"touched-{largest[0].phase}.bin"),
        "load": [load, os.getloadavg()[0]],
        "phases": phases,
    }
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
