# SPDX-License-Identifier: Apache-2.0
"""Kept probes and their full programs by turns on this machine: a row each."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hosts.kept import FOLDER, KEPT, KeptProgram, make_inputs, read_index
from benchmarks.hosts.processor import this_processor
from benchmarks.hosts.recorded import Row, missing, read_rows
from checkpoint.errors import ProbeError
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Streams, resolve_program
from probe import run
from probe.formats.manifest import Manifest
from probe.node.files import differing_files
from probe.node.measuring import away_from, measuring_cpu
from reducer.unpack import open_probe

FULL_RUNS = 3
"""One before the probe, the others behind it."""

_YARDSTICKS = 40
_BLOCK = bytes(1 << 20)
_COPIED = bytearray(64 << 20)


def measure(again: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """A row of every kept probe that has none on this processor; of all, if `again`."""
    make_inputs()
    index, host = read_index(), this_processor()
    wanted = [index[p.name]["probe"] for p in KEPT if p.name in index]
    due = set(wanted if again else missing(wanted, read_rows(), host))
    for program in KEPT:
        if program.name in index and index[program.name]["probe"] in due:
            say(f"bench: {program.name}")
            yield {**_row(program), "host": host, "built_on": index[program.name]["built_on"]}


def _row(program: KeptProgram) -> Row:
    with open_probe(program.probe) as archive:
        manifest = Manifest.from_json(archive.manifest)
        if not program.package:
            own = next(file for file in archive.files if file.path == str(FOLDER / program.name))
            (FOLDER / program.name).unlink(missing_ok=True)
            archive.extract_file(own.sha256, FOLDER / program.name, own.mode)
        other = [file.path for file in differing_files(archive.files)]
    row: Row = {"program": program.name, "kind": program.kind, "probe": manifest.id, "date": time.strftime("%Y-%m-%d")}
    row |= {"et_ref": manifest.reference.seconds, "clock": manifest.reference.clock, "other_files": other}
    try:
        row["noise"] = yardsticks()
        full = [_full_run(program, manifest)]
        result = run(program.probe)
        full += [_full_run(program, manifest) for _ in range(FULL_RUNS - 1)]
    except ProbeError as error:
        return {**row, "failure": str(error)}
    prediction, truth = result.prediction, statistics.mean(full)
    estimates = {name: seconds for name, seconds in prediction.estimators.items() if seconds == seconds}
    return {
        **row,
        "full": full,
        "predicted": prediction.seconds,
        "low": prediction.low,
        "high": prediction.high,
        "errors": {name: seconds / truth - 1.0 for name, seconds in estimates.items()},
        "error": prediction.seconds / truth - 1.0,
        "held": prediction.low <= truth <= prediction.high,
        "ratio": truth / manifest.reference.seconds,
    }


def _full_run(program: KeptProgram, manifest: Manifest) -> float:
    """Seconds of a full run by the probe's clock, in the environment that its reference runs had."""
    started = resolve_program(program.argv, isa=manifest.program.isa, cwd=str(FOLDER), env=program.env)
    cpu = measuring_cpu()
    with tempfile.TemporaryDirectory() as made, away_from(cpu):
        streams = Streams(Path(made) / "stdout", Path(made) / "stderr")
        done = run_plain(started, streams, cpu=cpu)
        if done.status:
            raise ProbeError(f"{program.name}: its full run failed: {streams.stderr.read_text()[-300:]}")
    return done.cpu if manifest.reference.clock == "cpu" else done.wall


def yardsticks() -> dict[str, float]:
    """How far equal work differs in time: 90 % range over median, of a hash in the cache and of a copy in memory."""
    return {"hash": _spread(lambda: hashlib.sha256(_BLOCK).digest()), "copy": _spread(lambda: bytes(_COPIED))}


def _spread(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(_YARDSTICKS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    times.sort()
    cut = _YARDSTICKS // 20
    return (times[-1 - cut] - times[cut]) / statistics.median(times)
