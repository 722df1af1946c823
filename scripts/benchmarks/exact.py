# SPDX-License-Identifier: Apache-2.0
"""The instruction-exact tracers: how fast their collector is, and what a very long run costs it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from programs import Benchmark

ROOT = Path(__file__).parents[2]
COLLECTOR = ROOT / "pintools" / "collector"
LONG_INTERVALS, LONG_ENTRIES = 100_000, 2000
"""A run of 10^13 instructions in intervals of 100 million, each with so many different blocks."""


def run(benchmarks: list[Benchmark], folder: Path) -> Iterator[dict[str, Any]]:
    """The records, as they are made; `folder` takes what is built on the way."""
    yield collector(folder)


def collector(folder: Path) -> dict[str, Any]:
    """Events per second from memory, and the memory and stream of a run of 10^13 instructions."""
    source = Path(__file__).with_name("feed_collector.c")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        program = Path(made) / "feed_collector"
        options = ["-O2", f"-I{COLLECTOR}", "-o", str(program), str(source), str(COLLECTOR / "collector.c")]
        subprocess.run(["cc", *options], check=True)

        def output(*arguments: str) -> list[str]:
            return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.split()

        nanoseconds = min(float(output()[0]) for _ in range(5))
        _, tenth, end, instructions, written = map(int, output(str(LONG_ENTRIES), str(LONG_INTERVALS)))
    return {
        "name": "collector",
        "events_per_second": 1e9 / nanoseconds,
        "instructions": instructions,
        "kilobytes_after_a_tenth": tenth,
        "kilobytes_at_the_end": end,
        "bytes_written": written,
    }


def report(load: Callable[[str], dict[str, Any] | None]) -> str:
    """What docs/figures.md shows, from the records there are."""
    lines = []
    if record := load("collector"):
        lines += [
            f"collector: {record['events_per_second'] / 1e6:.0f} million block events per second from memory",
            f"{record['instructions']:.3g} instructions: {record['kilobytes_after_a_tenth']} kB after a tenth, "
            f"{record['kilobytes_at_the_end']} kB at the end, {record['bytes_written'] / 1e6:.0f} MB written",
        ]
    return "\n".join(lines)
