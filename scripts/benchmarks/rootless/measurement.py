# SPDX-License-Identifier: Apache-2.0
"""Build programs directly, with several seeds, and once more by CRIU: state, pages, touched sets, times, stops, room.

A record is on disk after each of its parts: a suite of an hour goes on where it stopped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import captures
from benchmarks.accuracy.measurement import load
from benchmarks.disturbance import watched
from benchmarks.measure import REFUSED, probe_command
from benchmarks.programs import Benchmark, resolved
from benchmarks.rootless import both
from benchmarks.rootless.programs import CAPTURED, COMPARED, MEMORY
from benchmarks.rootless.room import fullest
from probe.formats.timing import load_timing

Record = dict[str, Any]

ASKED_FOR = "is asked for"
"""What `probe build` says of a page that it had left out and a phase wanted (reducer.touched_set)."""

_FEW_RUNS = ("--runs", "0", "--budget", "0")
"""A prediction is not what is measured here."""


def due(names: Sequence[str], seeds: Sequence[int], folder: Path, again: bool, untimed: bool = False) -> list[str]:
    """Programs of CAPTURED and MEMORY of which a part is missing yet, or all."""
    wanted = [name for name in names if name in CAPTURED or name in MEMORY]
    return [name for name in wanted if again or missing(name, seeds, load(folder / f"{name}.json"), untimed)]


def missing(name: str, seeds: Sequence[int], record: Record, untimed: bool = False) -> list[int]:
    """Seeds with which it is to be built yet. The comparison with CRIU belongs to the first, and so do region times,
    unless `untimed`."""
    first = seeds[0]
    wanted = [first] if name in MEMORY else seeds
    there = record.get("seeds", {})
    known = record.get("compared")
    compared = name not in COMPARED or (known is not None and (untimed or bool(known["ratios"])))
    return [seed for seed in wanted if str(seed) not in there or (seed == first and not compared)]


@dataclass(frozen=True)
class Place:
    """Where a program is built. `folder` takes records, probes and the work folder, `data` the inputs."""

    benchmark: Benchmark
    data: Path
    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / f"{self.benchmark.name}.work"

    def probe(self, kind: str) -> Path:
        return self.folder / f"{self.benchmark.name}-{kind}.probe"

    def command(self, *arguments: str | Path, before: str = "", seconds: float = 3600.0) -> Any:
        """What `probe ARGUMENTS --json` prints. Raises ValueError where it fails."""
        status, out, said = probe_command(
            self.benchmark, self.data, *map(str, arguments), before=before, seconds=seconds
        )
        if status:
            raise ValueError(f"probe {arguments[0]}: exit status {status}: {said[-REFUSED:]}")
        return json.loads(out)

    def build(self, kind: str, *options: str, before: str = "") -> Any:
        """Build `probe(kind)` in the work folder, going on with what is there."""
        return self.command(
            "build", "-q", "--json", *options, "-o", self.probe(kind), "--work", self.work, "--resume",
            "--stdin", self.benchmark.stdin, "--", *resolved(self.benchmark), before=before,
        )  # fmt: skip

    def clear(self) -> None:
        """Remove all but the record."""
        shutil.rmtree(self.work, ignore_errors=True)
        for path in self.folder.glob(f"{self.benchmark.name}-*.probe"):
            path.unlink()


def keep(record: Record, folder: Path) -> None:
    """Put the record on disk, whole or not at all."""
    path = folder / f"{record['program']}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)


def measure(
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    data: Path,
    folder: Path,
    again: bool,
    untimed: bool,
    say: Callable[[str], None],
) -> Iterator[Record]:
    """The programs that are due, each record on disk when it is yielded. `untimed`: no region times, so that the
    machine may be in use meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in due(names, seeds, folder, again, untimed):
        benchmark = CAPTURED.get(name) or MEMORY[name]
        yield measure_one(benchmark, seeds, data=data, folder=folder, again=again, untimed=untimed, say=say)


def measure_one(
    benchmark: Benchmark,
    seeds: Sequence[int],
    *,
    data: Path,
    folder: Path,
    again: bool,
    untimed: bool = False,
    say: Callable[[str], None],
) -> Record:
    """What is missing of one program."""
    record = {} if again else load(folder / f"{benchmark.name}.json")
    record |= {"program": benchmark.name, "kind": benchmark.kind, "date": time.strftime("%Y-%m-%d")}
    record.pop("failure", None)
    place = Place(benchmark, data, folder)
    place.clear()
    begun = time.monotonic()
    try:
        for seed in missing(benchmark.name, seeds, record, untimed):
            say(f"bench: {benchmark.name}, seed {seed}")
            first = seed == seeds[0]
            with watched() as other:
                found = seeded(place, seed)
                record.setdefault("seeds", {})[str(seed)] = found
                if first and benchmark.name in COMPARED:
                    record["compared"] = compared(place, seed, untimed)
            found |= {"load": other.to_json(), "untimed": untimed}
            keep(record, folder)
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    finally:
        place.clear()
    record["bench_seconds"] = record.get("bench_seconds", 0.0) + time.monotonic() - begun
    keep(record, folder)
    return record


def seeded(place: Place, seed: int) -> Record:
    """A direct build: touched sets that were tried, stops, and room."""
    with fullest(place.work) as peak:
        place.build("direct", *_FEW_RUNS, "--capture", "direct", "--seed", str(seed))
    return {**in_work(place.work), "room": room(place, peak.bytes, place.probe("direct"))}


def in_work(work: Path) -> Record:
    """What the records in a work folder say of the phases. `stops`: bytes captured, seconds until they were copied, and
    until the program could go on."""
    captured = json.loads((work / "captured.json").read_text())
    reduced = {one["phase"]: one for one in json.loads((work / "reduced.json").read_text())}
    whole = [one["whole"] for one in reduced.values() if one["whole"]]
    return {
        "phases": len(reduced),
        "pages": sum(one["raw_pages"] for one in reduced.values()),
        "left_out": sum(one["raw_pages"] - one["kept_pages"] for one in reduced.values()),
        "asked_for": [why for why in whole if ASKED_FOR in why],
        "whole": [why for why in whole if ASKED_FOR not in why],
        "stops": [[reduced[one["phase"]]["raw_bytes"], one["copying"], one["standing"]] for one in captured],
    }


def room(place: Place, peak: int, probe: Path) -> Record:
    """Bytes: the work folder at its fullest, the program's memory at its fullest, and the probe."""
    resident = load_timing(place.work / "timing.npz").resident
    return {"peak": peak, "resident": resident, "probe": probe.stat().st_size}


def compared(place: Place, seed: int, untimed: bool) -> Record:
    """The phases of the direct build, captured by CRIU too: what differs at the stops, and in the region times (none
    if `untimed`)."""
    stops = place.folder / f"{place.benchmark.name}.stops"
    stops.unlink(missing_ok=True)
    try:
        place.build(
            "criu", *_FEW_RUNS, "--capture", "criu", "--seed", str(seed), before=both.HOOKED.format(path=str(stops))
        )
        found = both.summary(stops.read_text().splitlines())
    finally:
        stops.unlink(missing_ok=True)
    if untimed:
        return {"state": found, "ratios": {}}
    ratios, whole = captures.by_turns(lambda kind: place.command(*captures.run_arguments(place.probe(kind))))
    return {"state": found, "ratios": {str(phase): ratio for phase, ratio in ratios.items()}, "prediction": whole}


def load_all(names: Sequence[str], folder: Path) -> list[Record]:
    """The records there are, in this order."""
    return [record for name in names if (record := load(folder / f"{name}.json"))]
