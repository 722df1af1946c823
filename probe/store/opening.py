# SPDX-License-Identifier: Apache-2.0
"""Opening a store, and letting one writer in at a time.

SQLite keeps a write-ahead log where the file system is known to be this machine's own. On any other (NFS, Lustre, GPFS,
CephFS, FUSE ...) it must not: the log's index is shared memory, which other machines do not see (sqlite.org/wal.html).
Writers of a SQLite store further queue at a POSIX lock beside the file, which network file systems honour and which
ends with its holder, however that ends. Writers of a database server lock one row.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from checkpoint.errors import StorageError, StoreBusy, StoreUnusable, ToolMissing
from checkpoint.paths import data_dir
from probe.store.schema import ADDED, METADATA, SCHEMA_VERSION, UPGRADED_FROM, VERSION_KEY, info

STORE_VARIABLE = "PROBE_STORE"
"""Environment variable with the URL or the path of the store."""

_NO_STORE = ": there is no store; import a result (probe store import), or make runs (probe bench)"

_FULL = ": the disk is full ({}); nothing was changed: make room, and try again"
_NONE_TO_UPGRADE = ": there is no store to upgrade; name another one with --store"

DEFAULT_PATIENCE = 60.0
"""Seconds to wait for other writers."""

_LOCAL_FILE_SYSTEMS = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
_POLL = 0.01
_WRITER, _NEXT = 0, 1
"""Bytes of the lock file: of who writes, and of who will be the next to."""

_DAMAGE = (exc.SQLAlchemyError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What becomes of rows that nothing here wrote, where they are read."""

_CACHE_KIB = 64 << 10
_LOG_INDEX_BYTES = 32 << 10
"""Least size of the index (sqlite.org/walformat.html)."""

_WRITES = "probe_writes"


@dataclass(frozen=True)
class Store:
    """An open store. `reading` and `writing` give connections, each within one transaction.

    path: of the SQLite file, None for a database server or a store in memory. patience: seconds to wait for writers.
    """

    engine: sa.Engine
    path: Path | None
    patience: float

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.dispose()

    @property
    def name(self) -> str:
        """For messages: never with a password."""
        return str(self.path) if self.path else self.engine.url.render_as_string(hide_password=True)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one state of the store. Raises StoreBusy, StoreUnusable."""
        with self._errors_named(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection for the only writer; all is committed when the block ends well, nothing otherwise.

        Raises StoreBusy when the others take longer than `patience`, StoreUnusable for a store that cannot be written.
        """
        with self.transaction() as connection:
            if self.engine.dialect.name != "sqlite":
                row = sa.select(info.c.value).where(info.c.key == VERSION_KEY).with_for_update()
                connection.execute(row).one()
            yield connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """As `writing`, for a database server without waiting for other writers: for making the tables alone."""
        with self._errors_named(), self._queue(), self.engine.connect() as connection:
            connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def _queue(self) -> Iterator[None]:
        """Hold the lock beside a SQLite file."""
        if self.path is None:
            yield
            return
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self.path.stat().st_mode & 0o666)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(f"{lock}{_FULL.format(error.strerror)}") from error
            raise StoreUnusable(
                f"{lock}: {error.strerror}; writing to the store needs write permission in its folder"
            ) from error
        try:
            deadline = time.monotonic() + self.patience
            # Whoever holds this is next: without it, one who writes again and again would overtake all who wait.
            _wait_for_lock(file, lock, self.patience, deadline, _NEXT)
            _wait_for_lock(file, lock, self.patience, deadline, _WRITER)
            fcntl.lockf(file, fcntl.LOCK_UN, 1, _NEXT)
            yield
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except exc.DBAPIError as error:
            raise _named(error, self) from error
        except _DAMAGE as error:
            raise StoreUnusable(
                f"{self.name}: is damaged, or not of this program: {error}; use a copy of it"
            ) from error


def _wait_for_lock(file: int, lock: Path, patience: float, deadline: float, byte: int) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise StoreUnusable(
                    f"{lock}: this file system offers no locks ({error.strerror}); mount it with them (Lustre: -o "
                    "flock), or put the store elsewhere or into a database server"
                ) from error
        if time.monotonic() > deadline:
            raise StoreBusy(
                f"{lock}: other processes have been writing for {patience:g} s; try again, or see with lslocks which"
            )
        time.sleep(_POLL)


def _named(error: exc.DBAPIError, store: Store) -> StoreBusy | StoreUnusable | StorageError:
    """Our error for what the database's driver raised."""
    name, patience = store.name, store.patience
    said = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if any(word in said for word in ("database is locked", "lock timeout", "database table is locked")):
        return StoreBusy(f"{name}: locked by another process for more than {patience:g} s ({said}); try again")
    if "disk is full" in said or "No space left" in said or ("disk I/O error" in said and _no_room(store.path)):
        return StorageError(f"{name}{_FULL.format(said)}")
    return StoreUnusable(f"{name}: {said}; see docs/store.md for what a store needs")


def _no_room(path: Path | None) -> bool:
    """Whether SQLite cannot make the index of its write-ahead log, which it calls an I/O error."""
    if path is None:
        return False
    room = os.statvfs(path.parent)
    return room.f_bavail * room.f_frsize < _LOG_INDEX_BYTES


def default_url() -> str:
    """What STORE_VARIABLE names, else a file in the user's data folder."""
    return os.environ.get(STORE_VARIABLE) or str(data_dir() / "store.db")


def open_store(url: str | Path | None = None, *, create: bool = True, patience: float = DEFAULT_PATIENCE) -> Store:
    """Open the store at `url`: a SQLAlchemy URL, or the path of a SQLite file; None is `default_url()`.

    A store that is not there is made if `create`. Raises StoreUnusable for one that cannot be reached, is not a
    store or has another schema version, StoreBusy, ToolMissing where the database's driver is not installed.
    """
    text = str(url or default_url())
    parsed = _parsed(text)
    path = _sqlite_path(parsed)
    if path is not None:
        if not path.exists() and not create:
            raise StoreUnusable(f"{path}{_NO_STORE}")
        if create:
            _make_folder(path)
    store = Store(_engine(parsed, path, patience), path, patience)
    try:
        _check_schema(store, create)
    except BaseException:
        store.engine.dispose()
        raise
    return store


def upgrade_store(url: str | Path | None = None, *, patience: float = DEFAULT_PATIENCE) -> tuple[int, int]:
    """Bring a store of a version before to this one, in one transaction; (version it had, version it has).

    Nothing is lost whenever this is killed: the tables that are new and the number come together, or not at all.
    Raises StoreUnusable for what is no store, or of another version, StoreBusy.
    """
    parsed = _parsed(str(url or default_url()))
    path = _sqlite_path(parsed)
    if path is not None and not path.exists():
        raise StoreUnusable(f"{path}{_NONE_TO_UPGRADE}")
    with Store(_engine(parsed, path, patience), path, patience) as store:
        if (found := _upgradable(store)) != SCHEMA_VERSION:
            with store.writing() as connection:
                # Another one may have done it while this one waited: perhaps a program that is newer than this one.
                value = connection.execute(sa.select(info.c.value).where(info.c.key == VERSION_KEY)).scalar()
                if str(value) in UPGRADED_FROM:
                    METADATA.create_all(connection, tables=list(ADDED))
                    row = info.c.key == VERSION_KEY
                    connection.execute(info.update().where(row).values(value=str(SCHEMA_VERSION)))
            _upgradable(store)
    return found, SCHEMA_VERSION


def _upgradable(store: Store) -> int:
    """Version of a store that this program has, or upgrades. Raises StoreUnusable for any other."""
    found = _version(store)
    if found is None:
        raise StoreUnusable(f"{store.name}{_NONE_TO_UPGRADE}")
    if found not in (*UPGRADED_FROM, str(SCHEMA_VERSION)):
        raise StoreUnusable(
            f"{store.name}: schema version {found} cannot be upgraded to {SCHEMA_VERSION}; use the version of probe "
            "that made it"
        )
    return int(found)


def _parsed(text: str) -> sa.URL:
    if "://" not in text:
        return sa.URL.create("sqlite", database=str(Path(text).absolute()))
    try:
        parsed = sa.make_url(text)
        # The old driver is rarely there; a URL without one means the one that this project asks for.
        return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed
    except exc.ArgumentError as error:
        raise StoreUnusable(f"{text.split('@')[-1]}: not a database URL such as postgresql://host/name") from error


def _sqlite_path(url: sa.URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database).absolute()


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnusable(f"{path.parent}: {error.strerror}; choose another place with --store") from error


def _engine(url: sa.URL, path: Path | None, patience: float) -> sa.Engine:
    try:
        if url.get_backend_name() != "sqlite":
            engine = sa.create_engine(url, poolclass=sa.NullPool)
        elif path is None:
            engine = sa.create_engine(url)
        else:
            engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": patience})
    except (ModuleNotFoundError, exc.NoSuchModuleError) as error:
        raise ToolMissing(
            f"{url.render_as_string(hide_password=True)}: {error}; install the driver of this database "
            "(PostgreSQL: pip install 'probe[postgresql]')"
        ) from error
    if engine.dialect.name == "sqlite":
        _set_up_sqlite(engine, path)
    elif engine.dialect.name == "postgresql":
        milliseconds = int(patience * 1000)

        @sa.event.listens_for(engine, "begin")
        def limit_waiting(connection: sa.Connection) -> None:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")

    return engine


def _set_up_sqlite(engine: sa.Engine, path: Path | None) -> None:
    log = path is not None and may_keep_log(path.parent)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        if path is not None:
            mode = "wal" if log else "delete"
            # Also for a store that was copied from one file system to another. Setting it anew would need a lock.
            if cursor.execute("PRAGMA journal_mode").fetchone()[0] != mode and os.access(path, os.W_OK):
                cursor.execute(f"PRAGMA journal_mode = {mode}")
            cursor.execute("PRAGMA synchronous = FULL")
            cursor.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            # In pages of 4 KiB: an import changes pages all over the indexes, most of them more than once.
            cursor.execute(f"PRAGMA wal_autocheckpoint = {_CACHE_KIB // 4}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def may_keep_log(folder: Path) -> bool:
    """Whether `folder` is on a file system of this machine alone, where SQLite may keep a write-ahead log."""
    try:
        device = folder.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return False
    kinds = {line[line.index("-") + 1] for line in lines if line[2] == wanted}
    if not kinds:
        # Subvolumes have device numbers that no mount shows: the mount with the longest path holds it.
        resolved = folder.resolve()
        holding = [line for line in lines if resolved.is_relative_to(line[4])]
        kinds = {max(holding, key=lambda line: len(line[4]))[-3]} if holding else set()
    return bool(kinds) and kinds <= _LOCAL_FILE_SYSTEMS


def _check_schema(store: Store, create: bool) -> None:
    """Make the tables of an empty database. Raises StoreUnusable for any other that is not a store of this version."""
    version = _version(store)
    if version is None and create:
        try:
            with store.transaction() as connection:
                METADATA.create_all(connection)
                row = info.select().where(info.c.key == VERSION_KEY)
                if connection.execute(row).first() is None:
                    connection.execute(info.insert().values(key=VERSION_KEY, value=str(SCHEMA_VERSION)))
        except StoreUnusable:
            # Two processes may have made it at once: of the database server's tables one creation fails.
            if _version(store) is None:
                raise
        version = _version(store)
    if version is None:
        raise StoreUnusable(f"{store.name}{_NO_STORE}")
    if version in UPGRADED_FROM:
        raise StoreUnusable(
            f"{store.name}: the store has schema version {version}, this program reads and writes {SCHEMA_VERSION}; "
            "run `probe store upgrade`, which keeps everything, or use the version of probe that made it"
        )
    if version != str(SCHEMA_VERSION):
        raise StoreUnusable(
            f"{store.name}: the store has schema version {version}, this program reads and writes {SCHEMA_VERSION}; "
            "use the version of probe that made it, or import the results again into a new store"
        )


def _version(store: Store) -> str | None:
    """Schema version of the store, None for an empty database. Raises StoreUnusable for one with other tables."""
    with store.reading() as connection:
        tables = set(sa.inspect(connection).get_table_names())
        if info.name in tables:
            found = connection.execute(sa.select(info.c.value).where(info.c.key == VERSION_KEY)).scalar()
            if found is not None:
                return str(found)
        elif tables and store.path is not None:
            raise StoreUnusable(f"{store.name}: this database is not a probe store (it has {sorted(tables)[0]})")
    return None
