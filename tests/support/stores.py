# SPDX-License-Identifier: Apache-2.0
"""Stores to test with, on each kind of database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
import sqlalchemy as sa

from probe.store.opening import Store, open_store


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with postgres.server(tmp_path_factory.mktemp("pg")) as socket:
        yield socket


_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there is no store yet, on each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return postgres.new_database(request.getfixturevalue("server"), f"probe{next(_numbers)}")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


def count(store: Store, table: sa.Table) -> int:
    with store.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
