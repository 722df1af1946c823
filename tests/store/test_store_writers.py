# SPDX-License-Identifier: Apache-2.0
"""Writers of a store: who waits for whom, where the journal is, and writers that are killed."""

from __future__ import annotations

import fcntl
import itertools
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from results import result
from stores import count, server, url

from checkpoint.errors import StoreBusy, StoreUnusable
from probe.store.importing import import_results
from probe.store.opening import may_keep_log, open_store
from probe.store.reading import all_probes, history
from probe.store.schema import newest, predictions

__all__ = ["server", "url"]

NOON = 1_700_000_000.0
ROOT = Path(__file__).parents[2]


# -- locks


def test_a_writer_waits_for_the_lock_beside_the_file_and_says_who_is_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        import_results(store, [result(1.0)])
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path) + ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout and holder.stdin and holder.stdout.readline() == "held\n"
        with open_store(path, patience=0.2) as store:
            with pytest.raises(StoreBusy, match=r"store\.db\.lock: other processes"):
                import_results(store, [result(2.0)])
            assert len(history(store)) == 1, "reading must go on"
        holder.kill()
        holder.wait()
        with open_store(path, patience=5) as store:
            import_results(store, [result(2.0)])
    finally:
        holder.kill()
        holder.communicate()


def test_one_who_writes_again_and_again_does_not_overtake_who_waits(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db"):
        pass
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE_AGAIN, str(tmp_path)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout
    turns = tmp_path / "turns"
    try:
        process.stdout.readline()
        overtaken = 0
        for _ in range(10):
            with open_store(tmp_path / "store.db") as store:
                before = turns.stat().st_size
                with store.writing():
                    overtaken += turns.stat().st_size - before
    finally:
        process.kill()
        process.communicate()
    # The one under way when it came, and one that was next already.
    assert overtaken <= 2 * 10


_WRITE_AGAIN = """
import sys, time
from probe.store.opening import open_store
with open_store(sys.argv[1] + "/store.db") as store, open(sys.argv[1] + "/turns", "ab", buffering=0) as turns:
    print(flush=True)
    while True:
        with store.writing():
            turns.write(b".")
            time.sleep(0.03)
"""

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_locked_by_another_program(url: str) -> None:
    with open_store(url) as store:
        import_results(store, [result(1.0)])
    with open_store(url, patience=0.2) as store:
        other = sa.create_engine(store.engine.url, poolclass=sa.NullPool)
        with other.connect() as connection:
            if store.path:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql("SELECT * FROM probe_store_info FOR UPDATE")
            with pytest.raises(StoreBusy, match="locked by another process"):
                import_results(store, [result(2.0)])
        import_results(store, [result(2.0)])
        assert len(history(store)) == 2


def test_a_writer_keeps_out_programs_that_do_not_know_the_lock(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        import_results(store, [result(1.0)])
        with store.writing():
            other = sqlite3.connect(tmp_path / "store.db", timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("UPDATE probes SET name = 'x'")
            other.close()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Lustre without -o flock answers. No such file system can be made here, so the call is replaced."""

    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    with open_store(tmp_path / "store.db") as store:
        monkeypatch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(StoreUnusable, match="offers no locks"):
            import_results(store, [result(1.0)])


def journal(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


def test_no_write_ahead_log_where_the_file_system_is_not_known_to_be_local(tmp_path: Path) -> None:
    """ramfs is not on the list, like every network file system; a store that was copied there changes."""
    assert may_keep_log(tmp_path)
    with open_store(tmp_path / "store.db") as store:
        import_results(store, [result(1.0)])
    assert journal(tmp_path / "store.db") == "wal"
    (tmp_path / "other").mkdir()
    script = f"""
        mount -t ramfs ramfs {tmp_path}/other
        cp {tmp_path}/store.db {tmp_path}/other/
        {sys.executable} {ROOT}/tests/support/journal_modes.py {tmp_path}/other
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"local": False, "copied": ["delete", 2], "new": ["delete", 1]}


# -- writers that are killed

_PATIENCE = 300.0
"""Seconds for 40 commits, which take a second or two: even if each waits for a disk that others keep busy."""


def _write_for_ever(url: str, number: int, log: str) -> None:
    """Batches of three; what was committed is noted by the number of the batch."""
    with open_store(url, patience=_PATIENCE) as store, open(log, "a") as committed:
        for batch in itertools.count():
            stamp = time.monotonic_ns()
            given = [result(1 + part, node=f"w{number}-{part}", probe=f"p{stamp}") for part in range(3)]
            import_results(store, given, made_at=NOON + batch)
            committed.write(f"p{stamp}\n")
            committed.flush()


def _committed(logs: list[Path]) -> int:
    return sum(log.read_text().count("\n") for log in logs if log.exists())


def test_eight_writers_killed_at_random_lose_and_break_nothing(url: str, tmp_path: Path) -> None:
    with open_store(url):
        pass
    chance = random.Random(7)
    context = multiprocessing.get_context("fork")
    logs = [tmp_path / f"log{n}" for n in range(8)]

    def start(number: int) -> Any:
        process = context.Process(target=_write_for_ever, args=(url, number, str(logs[number])), daemon=True)
        process.start()
        return process

    writers = [start(n) for n in range(8)]
    try:
        kills, deadline = 0, time.monotonic() + _PATIENCE
        while kills < 40 or _committed(logs) < 40:
            # Where a commit takes as long as a writer lives (a busy machine, a slow disk) none would ever be made.
            while kills > _committed(logs) + 8:
                assert time.monotonic() < deadline, f"{_committed(logs)} commits in {_PATIENCE:g} s"
                time.sleep(0.005)
            kills += 1
            time.sleep(chance.uniform(0.01, 0.08))
            victim = chance.randrange(8)
            assert writers[victim].is_alive(), "a writer failed by itself"
            os.kill(writers[victim].pid, signal.SIGKILL)
            writers[victim].join()
            writers[victim] = start(victim)
        time.sleep(0.2)
    finally:
        for writer in writers:
            writer.kill()
        for writer in writers:
            writer.join()
    committed = {line for log in logs if log.exists() for line in log.read_text().split("\n")[:-1]}
    with open_store(url) as store:
        # The locks of the killed are gone.
        import_results(store, [result(1.0)])
        stored = [p.probe for p in history(store) if p.probe != "solver"]
        whole = {name: stored.count(name) for name in set(stored)}
        assert set(whole.values()) == {3}, "half a batch"
        assert committed <= whole.keys(), "lost"
        assert count(store, newest) == count(store, predictions) == 3 * len(whole) + 1
        if store.path:
            with store.reading() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
                assert connection.exec_driver_sql("PRAGMA foreign_key_check").first() is None


def test_eight_processes_make_one_store(url: str) -> None:
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=_import_one, args=(url, n)) for n in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 8
    with open_store(url) as store:
        assert len(history(store)) == 8 and len(all_probes(store)) == 1


def _import_one(url: str, number: int) -> None:
    with open_store(url) as store:
        import_results(store, [result(1.0 + number)])
