# SPDX-License-Identifier: Apache-2.0
"""Build a kernel's probe with the defaults, run it, and right after it the kernel in full.

Each kernel leaves a record as soon as it is done, and is not measured again. What the tool refuses is a record, too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.measurement import load
from benchmarks.disturbance import watched
from benchmarks.measure import REFUSED, full_runs, probe_command
from benchmarks.programs import Benchmark
from benchmarks.threads.measurement import refusal

Record = dict[str, Any]

ESTIMATORS = {"combined": "combined", "calibrated": "calibrated", "direct": "direct", "thesis": "strube"}
"""By name in the tables: their names in the JSON of `probe run`."""


def due(kernels: Sequence[Benchmark], folder: Path, again: bool) -> list[Benchmark]:
    """Those that have neither figures nor a refusal yet, or all."""
    return [one for one in kernels if again or not _done(load(folder / f"{one.name}.json"))]


def _done(record: Record) -> bool:
    return "truth" in record or bool(refusal(record))


def load_all(names: Sequence[str], folder: Path) -> list[Record]:
    """The records there are of these kernels, in this order."""
    return [record for name in names if (record := load(folder / f"{name}.json"))]


def measure(kernels: Sequence[Benchmark], folder: Path, runs: int, say: Callable[[str], None]) -> Iterator[Record]:
    """A record for each, on disk when it is yielded. `runs`: full runs to compare with."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in kernels:
        say(f"bench: {kernel.name}")
        record = _one(kernel, folder, runs)
        path = folder / f"{kernel.name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=1) + "\n")
        partial.replace(path)
        yield record


def _one(kernel: Benchmark, folder: Path, runs: int) -> Record:
    record: Record = {"program": kernel.name, "kind": kernel.kind, "date": time.strftime("%Y-%m-%d")}
    target = folder / f"{kernel.name}.probe"
    begun = time.monotonic()
    try:
        with watched() as build_load:
            show = _command(kernel, folder, "build", "-q", "--json", "-o", str(target), "--", *kernel.argv)
        record |= {"build_seconds": time.monotonic() - begun, "build_load": build_load.to_json()}
        with watched() as run_load:
            run = _command(kernel, folder, "run", "-q", "--json", str(target))
            full = full_runs(kernel, kernel.argv, folder, folder, runs)
        record["run_load"] = run_load.to_json()
        record |= figures(show, run, [one.cpu if show["clock"] == "cpu" else one.wall for one in full])
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    finally:
        target.unlink(missing_ok=True)
    return {**record, "bench_seconds": time.monotonic() - begun}


def _command(kernel: Benchmark, folder: Path, *arguments: str) -> Any:
    """What `probe ARGUMENTS --json` prints. Raises ValueError where it fails."""
    status, out, said = probe_command(kernel, folder, *arguments)
    if status:
        raise ValueError(f"probe {arguments[0]}: exit status {status}: {said[-REFUSED:]}")
    return json.loads(out)


def figures(show: Record, run: Record, full: Sequence[float]) -> Record:
    """What the tables show, from the JSON of the commands. Errors are relative to the mean of the full runs, which is
    also what the interval has to hold; the error of an estimator that gives none is null."""
    truth, said = statistics.mean(full), run["prediction"]
    found = {name: run["estimators"].get(key) for name, key in ESTIMATORS.items()}
    return {
        "clock": show["clock"],
        "full": list(full),
        "truth": truth,
        "errors": {name: None if value is None else value / truth - 1 for name, value in found.items()},
        "prediction": said,
        "half_width": said["high"] / said["seconds"] - 1,
        "held": said["low"] <= truth <= said["high"],
        "counted_share": show["counted_share"],
        "sites": show["sites"],
        "tracing": show["tracing_overhead"],
        "timing": show["noise"],
        "phases": len(show["phases"]),
        "intervals": show["intervals"],
        "warnings": [*show["warnings"], *run["warnings"]],
        "notes": show["notes"],
    }
