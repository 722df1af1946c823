# SPDX-License-Identifier: Apache-2.0
"""Stores of the version before: refused with what to do, upgraded in one transaction, whole wherever that is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
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
        version = int(str(connection.execute(sa.select(info.c.value).where(info.c.key == VERSION_KEY)).scalar()))
        tables = set(sa.inspect(connection).get_table_names())
        count = connection.exec_driver_sql("SELECT count(*) FROM predictions").scalar()
    added = {table.name for table in ADDED}
    assert count == RESULTS and added & tables == (added if version == 3 else set())
    return version


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


def test_killed_at_any_time(tmp_path: Path) -> None:
    chosen = random.Random(7)
    for turn in range(8):
        path = tmp_path / f"store{turn}.db"
        before(str(path))
        running = subprocess.Popen(
            [sys.executable, "-m", "probe", "store", "upgrade", "--store", str(path)],
            stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        time.sleep(chosen.uniform(0.1, 0.8))
        running.kill()
        running.wait()
        whole(path)
        upgrade_store(path)
        assert whole(path) == 3
