# SPDX-License-Identifier: Apache-2.0
"""Measure what a warm-up does to region times, program by program: the trials of `probe build --warmup auto`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.disturbance import wait_until_quiet, watched
from benchmarks.measure import probe_command
from benchmarks.programs import Benchmark, resolved

Record = dict[str, Any]


def run(benchmarks: Sequence[Benchmark], folder: Path, interval: float | None, patience: float) -> Iterator[Record]:
    """A record of each: {warmup: as in `probe show --json`, seconds: of trying and of a whole build, ...}."""
    for benchmark in benchmarks:
        if benchmark.expected_refusal:
            continue
        record: Record = {"name": f"warm-up-{benchmark.name}", "interval": interval}
        target, work = folder / f"{benchmark.name}-warm-up.probe", folder / f"{benchmark.name}-warm-up.work"
        shutil.rmtree(work, ignore_errors=True)
        length = [f"--interval={interval:g}s"] if interval else []
        command = ["build", "--json", "-o", str(target), "--work", str(work), "--stdin", benchmark.stdin, *length]
        try:
            record["quiet"] = wait_until_quiet(patience)
            begun = time.monotonic()
            with watched() as load:
                status, output, said = probe_command(
                    benchmark, folder / "data", *command, "--warmup", "auto", "--", *resolved(benchmark)
                )
            record |= {"load": load.to_json(), "seconds": time.monotonic() - begun, "status": status}
            if status:
                record["refused"] = said.splitlines()[-1]
            else:
                described = json.loads(output)
                record["warmup"] = described["warmup"]
                record["restore_error"] = described["errors"]["restore"]
                record["doubts"] = [w for w in described["warnings"] if w.startswith("--warmup auto")]
        finally:
            shutil.rmtree(work, ignore_errors=True)
            target.unlink(missing_ok=True)
        yield record


def report(records: Sequence[Record]) -> str:
    """Region time behind each warm-up over that behind the longest, in per cent, and over the timing run's."""
    lines = []
    for record in records:
        name = record["name"].removeprefix("warm-up-")
        if record["status"]:
            lines.append(f"{name:<12} {record['refused']}")
            continue
        trials = "  ".join(
            f"{t['intervals']}: {100 * (t['relative'] - 1):+.1f} ± {100 * t['error']:.1f} %"
            f" (run {100 * (t['against_run'] - 1):+.1f} %)"
            for t in record["warmup"]["trials"]
        )
        doubt = " doubtful" * bool(record["doubts"])
        lines.append(f"{name:<12} taken {record['warmup']['intervals']}{doubt}  {trials}")
    return "\n".join(lines)
