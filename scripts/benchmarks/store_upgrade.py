# SPDX-License-Identifier: Apache-2.0
"""Upgrade of a large store of schema version 1: seconds, memory, file sizes; and killed at many moments.

A kill ends the process and not the machine: what the kernel has is still written. As a program:
`python3 -m benchmarks.store_upgrade [PREDICTIONS [KILLS]]` in scripts/; a million and 30 without.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from probe.store.opening import open_store, upgrade_store
from probe.store.schema import ADDED, METADATA, SCHEMA_VERSION, VERSION_KEY

ROOT = Path(__file__).parents[2]
PREDICTIONS, KILLS = 1_000_000, 30
_PROBES, _NODES = 20, 500
_SEED: Final = 26
_ADDED: Final = tuple(table.name for table in reversed(ADDED))
_OLD: Final = tuple(table.name for table in METADATA.sorted_tables if table not in ADDED)
"""Tables that version 1 had."""


def make_old(path: Path, count: int) -> None:
    """A store as version 1 left it, with `count` predictions of _PROBES probes on _NODES nodes."""
    with open_store(path):
        pass
    with closing(sqlite3.connect(path)) as connection, connection:
        _downgrade(connection)
        connection.executemany(
            "INSERT INTO probes VALUES (?, ?, ?, '[\"./solver\"]', '', '[]')",
            ((n, f"{n:032x}", f"solver{n}") for n in range(1, _PROBES + 1)),
        )
        connection.executemany(
            "INSERT INTO nodes VALUES (?, ?, 'c', 'Example CPU', 8, NULL, '6.1', '[]', 1, 0, ?)",
            ((n, f"n{n}", f"{n:032x}") for n in range(1, _NODES + 1)),
        )
        connection.executemany(f"INSERT INTO predictions VALUES ({', '.join('?' * 18)})", _predictions(count))
        connection.execute(
            "INSERT INTO newest_predictions "
            "SELECT probe, node, id, max(made_at), seconds, low, high, state FROM predictions GROUP BY probe, node"
        )


def _predictions(count: int) -> Iterator[tuple[Any, ...]]:
    chosen = random.Random(_SEED)
    for number in range(1, count + 1):
        seconds = chosen.uniform(1, 1000)
        probe, node = 1 + number % _PROBES, 1 + number // _PROBES % _NODES
        phases = json.dumps([[phase, 0.1, 0.1, 0.05, 0.05 * chosen.uniform(0.5, 2), "ok", "", "direct"]
                             for phase in range(4)])  # fmt: skip
        yield (
            number, f"{number:032x}", probe, node, 1e9 + number, seconds, 0.9 * seconds, 1.1 * seconds, 0.99, "cpu",
            "/data/solver.probe", "Example CPU", "6.1", 0.01, f"{node:032x}", '{"calibrated": 1.0}', phases, "[]",
        )  # fmt: skip


def _downgrade(connection: sqlite3.Connection) -> None:
    for name in _ADDED:
        connection.execute(f"DROP TABLE IF EXISTS {name}")
    connection.execute("UPDATE probe_store_info SET value = '1' WHERE key = ?", (VERSION_KEY,))


def version(path: Path) -> int:
    """Of a store. Raises ValueError for half of one: damaged, or with other tables than its version has."""
    with closing(sqlite3.connect(path)) as connection:
        if (said := connection.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
            raise ValueError(f"{path}: {said}")
        value = connection.execute("SELECT value FROM probe_store_info WHERE key = ?", (VERSION_KEY,))
        found = int(value.fetchone()[0])
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if there & set(_ADDED) != (set(_ADDED) if found == SCHEMA_VERSION else set()) or not set(_OLD) <= there:
        raise ValueError(f"{path}: version {found} with the tables {sorted(there)}")
    return found


def rows(path: Path) -> str:
    """A checksum of all rows that version 1 had, its number left out."""
    whole = hashlib.sha256()
    with closing(sqlite3.connect(path)) as connection:
        for name in _OLD:
            order = "1, 2" if name == "newest_predictions" else "1"
            where, values = (" WHERE key <> ?", (VERSION_KEY,)) if name == "probe_store_info" else ("", ())
            for row in connection.execute(f"SELECT * FROM {name}{where} ORDER BY {order}", values):
                whole.update(repr((name, row)).encode())
    return whole.hexdigest()


_UPGRADE = "import sys; from benchmarks.store_upgrade import upgrade_when_told; upgrade_when_told(sys.argv[1])"


def upgrade_when_told(path: str) -> None:
    """In a process of its own: say that all is imported, wait for a line, upgrade, and say seconds and megabytes."""
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    upgrade_store(path)
    took = time.monotonic() - begun
    print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)


class Upgrading:
    """A process that is ready to upgrade a store: its path, or its URL."""

    def __init__(self, path: Path | str) -> None:
        folders = os.pathsep.join((str(ROOT), str(ROOT / "scripts")))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _UPGRADE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": folders},
        )  # fmt: skip
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def begin(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill_after(self, seconds: float) -> bool:
        """Kill it so long after its beginning; whether it was still at work."""
        time.sleep(seconds)
        self._process.kill()
        self._process.communicate()
        return self._process.returncode == -signal.SIGKILL

    def end(self) -> tuple[float, float]:
        """Seconds that it took, and its largest resident size in MB. Raises CalledProcessError where it failed."""
        said, _ = self._process.communicate()
        if self._process.returncode:
            raise subprocess.CalledProcessError(self._process.returncode, "upgrade")
        seconds, megabytes = json.loads(said)
        return float(seconds), float(megabytes)


def sizes(path: Path) -> dict[str, int]:
    """Bytes of the store's files that are there."""
    names = [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))]
    return {one.name: one.stat().st_size for one in names if one.exists()}


def killed_again_and_again(path: Path, kills: int, longest: float) -> Counter[str]:
    """Upgrade and kill at `kills` moments up to `longest` seconds; how often the store was as before, and as after.

    Tables of version 3 are taken out again before the next upgrade. A row that a kill loses stays lost: compare `rows`
    of before and after all of them. Raises ValueError for half a store.
    """
    chosen, seen = random.Random(_SEED), Counter[str]()
    for number in range(kills):
        running = Upgrading(path)
        running.begin()
        at_work = running.kill_after(longest * (number + chosen.random()) / kills)
        found = version(path)
        seen["as before" if found == 1 else "as after, killed" if at_work else "as after, ended"] += 1
        if found != 1:
            with closing(sqlite3.connect(path)) as connection, connection:
                _downgrade(connection)
    return seen


def measure(count: int, kills: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The record: seconds, memory, sizes of files before and after, and what kills left."""
    path = folder / "store.db"
    begun = time.monotonic()
    make_old(path, count)
    say(f"bench: a store of version 1 with {count:,} predictions, made in {time.monotonic() - begun:.0f} s")
    before = rows(path)
    record: dict[str, Any] = {"predictions": count, "before": sizes(path)}
    running = Upgrading(path)
    running.begin()
    record["seconds"], record["megabytes"] = running.end()
    record["after"] = sizes(path)
    if version(path) != SCHEMA_VERSION or rows(path) != before:
        raise ValueError(f"{path}: the upgrade lost rows, or is none")
    say(f"bench: upgraded, nothing lost: {json.dumps(record)}")
    with closing(sqlite3.connect(path)) as connection, connection:
        _downgrade(connection)
    record["killed"] = killed_again_and_again(path, kills, 1.2 * record["seconds"])
    if rows(path) != before:
        raise ValueError(f"{path}: a killed upgrade lost rows")
    return record


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        found = measure(*(numbers + [PREDICTIONS, KILLS][len(numbers) :]), Path(name), lambda text: print(text))
    print(json.dumps(found))
