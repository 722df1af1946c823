# SPDX-License-Identifier: Apache-2.0
"""Measure how far predictions of programs with several threads are from full runs: as `accuracy` does, at each width.

What the tool refuses is a row, too, and is not tried again: pools and work stealing may have no place that each run
reaches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.accuracy import measurement as accuracy
from benchmarks.threads.programs import rows, with_threads

Record = accuracy.Record

_REFUSED = ("4", "7", "14")
"""Exit statuses of ProgramUnsupported, of runs that differ, and of NodeUnfit (docs/cli.md)."""


def refusal(record: Record) -> str:
    """What the tool said where it refused the program; "" where it did not."""
    found = re.search(r"exit status (\d+): (.*)", record.get("failure", ""), re.DOTALL)
    return found[2].strip().splitlines()[-1] if found and found[1] in _REFUSED else ""


def due(
    names: Sequence[str], widths: Sequence[int], seeds: Sequence[int], folder: Path, again: bool
) -> dict[str, list[int]]:
    """Seeds to be measured yet, by name and width."""
    wide = [with_threads(name, threads).name for name, threads in rows(names, widths)]
    return {name: [s for s in seeds if again or not _done(folder / f"{name}-{s}.json")] for name in wide}


def _done(path: Path) -> bool:
    record = accuracy.load(path)
    return "native" in record or bool(refusal(record))


def measure(
    names: Sequence[str], widths: Sequence[int], seeds: Sequence[int], settings: accuracy.Settings, *, data: Path,
    folder: Path, again: bool, say: Callable[[str], None],
) -> Iterator[Record]:  # fmt: skip
    """The rows that are missing yet, each on disk when it is yielded."""
    missing = due(names, widths, seeds, folder, again)
    for benchmark in (with_threads(name, threads) for name, threads in rows(names, widths)):
        wanted = missing[benchmark.name]
        for seed in wanted if again else ():
            (folder / f"{benchmark.name}-{seed}.json").unlink(missing_ok=True)
        for seed in wanted:
            # One at a time: what is refused once is refused with every seed.
            made = list(accuracy.measure_program(benchmark, [seed], settings, data=data, folder=folder, say=say))
            yield from made
            if made and refusal(made[0]):
                break


def load_all(names: Sequence[str], widths: Sequence[int], seeds: Sequence[int], folder: Path) -> list[Record]:
    """The rows there are, by program, width and seed."""
    return accuracy.load_all(folder, [with_threads(name, n).name for name, n in rows(names, widths)], seeds)
