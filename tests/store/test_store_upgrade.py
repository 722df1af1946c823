# SPDX-License-Identifier: Apache-2.0
"""Stores of the version before: refused with what to do, upgraded in one transaction, whole wherever that is killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from benchmarks.store_upgrade import Upgrading, killed_again_and_again, make_old, rows, version
from click.testing import CliRunner
from command import wait_for
from published import schema_errors
from results import result
from stores import server, url

from checkpoint.errors import StoreUnusable
from probe.cli.main import cli
from probe.store.emulations import stored_emulations, stored_usages
from probe.store.importing import import_results
from probe.store.opening import open_store, upgrade_store
from probe.store.reading import history
from probe.store.runs import stored_runs
from probe.store.schema import ADDED, METADATA, VERSION_KEY, emulations, info, usages

__all__ = ["server", "url"]
ROOT = Path(__file__).parents[2]
RESULTS = 40


def before(url: str) -> None:
    """A store as version 1 left it: without the tables that came later."""
    with open_store(url) as store:
        import_results(store, [result(1.0 + number) for number in range(RESULTS)])
        with store.writing() as connection:
            METADATA.drop_all(connection, tables=list(ADDED))
            connection.execute(info.update().where(info.c.key == VERSION_KEY).values(value="1"))


def test_a_store_of_version_1_is_upgraded_in_place(url: str) -> None:
    before(url)
    with pytest.raises(StoreUnusable, match=r"schema version 1, .* run `probe store upgrade`"):
        open_store(url)
    assert upgrade_store(url) == (1, 3)
    assert upgrade_store(url) == (3, 3)
    with open_store(url, create=False) as store:
        assert len(history(store)) == RESULTS and stored_runs(store) == []
        import_results(store, [result(99.0)])


def test_a_store_of_version_2_is_upgraded_in_place(url: str) -> None:
    with open_store(url) as store, store.writing() as connection:
        METADATA.drop_all(connection, tables=[usages, emulations])
        connection.execute(info.update().where(info.c.key == VERSION_KEY).values(value="2"))
    assert upgrade_store(url) == (2, 3)
    with open_store(url, create=False) as store:
        assert stored_usages(store) == [] and stored_emulations(store, name="x") == []


def test_the_command(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    before(path)
    said = json.loads(CliRunner().invoke(cli, ["store", "upgrade", "--json", "--store", path]).stdout)
    assert schema_errors("probe-store-upgrade", said) == []
    assert (said["before"], said["after"]) == (1, 3)
    assert CliRunner().invoke(cli, ["store", "upgrade", "--store", path]).stdout == "version 3 already\n"


def test_what_cannot_be_upgraded(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="there is no store to upgrade"):
        upgrade_store(tmp_path / "none.db")
    path = tmp_path / "store.db"
    with open_store(path) as store, store.writing() as connection:
        connection.execute(info.update().where(info.c.key == VERSION_KEY).values(value="7"))
    with pytest.raises(StoreUnusable, match="schema version 7 cannot be upgraded"):
        upgrade_store(path)
    (tmp_path / "text.db").write_text("no database" * 100)
    with pytest.raises(StoreUnusable):
        upgrade_store(tmp_path / "text.db")


_KILLED = """
import os, signal, sys
import sqlalchemy as sa
from probe.store.opening import upgrade_store
left = int(sys.argv[2])
def count(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
for name in ("before_cursor_execute", "after_cursor_execute"):
    sa.event.listen(sa.Engine, name, count)
sa.event.listen(sa.Engine, "commit", count)
upgrade_store(sys.argv[1])
"""


def whole(path: Path) -> int:
    """Version of a store that is as before or as after, with all its predictions."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        found = int(str(connection.execute(sa.select(info.c.value).where(info.c.key == VERSION_KEY)).scalar()))
        tables = set(sa.inspect(connection).get_table_names())
        count = connection.exec_driver_sql("SELECT count(*) FROM predictions").scalar()
    added = {table.name for table in ADDED}
    assert count == RESULTS and added & tables == (added if found == 3 else set())
    return found


def test_killed_before_and_after_every_statement(tmp_path: Path) -> None:
    seen = []
    for step in range(200):
        path = tmp_path / f"store{step}.db"
        before(str(path))
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, str(path), str(step)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        seen.append(whole(path))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        upgrade_store(path)
        assert whole(path) == 3
    assert len(seen) > 10 and seen[0] == 1 and seen[-1] == 3


def test_killed_at_many_moments(tmp_path: Path) -> None:
    """Once it has begun: every row is as it was, and all new tables are there, or none. How often it came that far
    depends on the machine; the test before this one kills at every statement."""
    path = tmp_path / "store.db"
    make_old(path, 500)
    before_all = rows(path)
    seen = killed_again_and_again(path, 12, 0.15)
    assert rows(path) == before_all
    assert seen.total() == 12


def test_checks_of_the_benchmark_see_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    make_old(path, 20)
    whole = rows(path)
    for change in ("DELETE FROM predictions WHERE id = 7", "UPDATE nodes SET cores = 9 WHERE id = 3"):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
        assert rows(path) != whole
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
    with pytest.raises(ValueError, match="version 1 with the tables"):
        version(path)


def test_four_processes_upgrade_one_store(url: str) -> None:
    before(url)
    running = [Upgrading(url) for _ in range(4)]
    for one in running:
        one.begin()
    for one in running:
        one.end()
    with open_store(url, create=False) as store:
        assert len(history(store)) == RESULTS and stored_runs(store) == []


def test_a_newer_program_upgrades_while_this_one_waits(tmp_path: Path) -> None:
    """Its version stays."""
    path = tmp_path / "store.db"
    before(str(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, ThreadPoolExecutor() as pool:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE probe_store_info SET value = '9' WHERE key = ?", (VERSION_KEY,))
        waiting = pool.submit(upgrade_store, path)
        # Whoever is at work holds the lock beside the file.
        wait_for(lambda: not _free(path.with_name("store.db.lock")), "the upgrade to wait")
        connection.execute("COMMIT")
        with pytest.raises(StoreUnusable, match="schema version 9 cannot be upgraded to 3; use the version of probe"):
            waiting.result()
        assert not set(_tables(connection)) & {table.name for table in ADDED}


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _free(lock: Path) -> bool:
    """Whether no process has a POSIX lock on the file: those of this one do not stop it, but are listed."""
    wanted = f":{lock.stat().st_ino} "
    return not any(wanted in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.parametrize("free", [0, 32, 96])
def test_a_full_disk_during_the_upgrade(free: int, tmp_path: Path) -> None:
    """Free kilobytes: none, too few for the new tables, nearly enough. With room again it goes on."""
    script = """
        mount -t tmpfs -o size=8m small "$1"
        "$2" -c 'import sys; from benchmarks.store_upgrade import *; make_old(Path(sys.argv[1]), 200)' "$1/store.db"
        dd if=/dev/zero of="$1/fill" bs=4k 2>/dev/null || true
        truncate -s -"$3"k "$1/fill"
        check='import sys; from benchmarks.store_upgrade import *; p = Path(sys.argv[1]); print(version(p), rows(p))'
        "$2" -m probe store upgrade --store "$1/store.db" || echo "status $?"
        rm "$1/fill"
        "$2" -c "$check" "$1/store.db"
        "$2" -m probe store upgrade --store "$1/store.db"
        "$2" -c "$check" "$1/store.db"
    """
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", tmp_path, sys.executable,
         str(free)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "scripts")))},
    )  # fmt: skip
    status, first, said, second = done.stdout.splitlines()
    assert status == "status 10" and said == "version 1 is version 3 now"
    assert first == f"1 {first.split()[1]}" and second == f"3 {first.split()[1]}"
    assert done.stderr.count("\n") == 1 and "store.db: the disk is full (" in done.stderr
    assert "nothing was changed: make room, and try again" in done.stderr
