# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server from the distribution's packages, in a folder of its own, reached by a socket there."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

SECONDS = 60.0
# The server refuses to run as root. Under another number in a user namespace its files stay ours.
_AS_ANYBODY = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    # Its default is a file in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "40",
}


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    assert found, "PostgreSQL is not installed: run scripts/test"
    return found[-1]


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Path]:
    """Yields the folder of the socket, to connect to as user `probe` without a password."""
    programs, data = _programs(), folder / "data"
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "probe", "-A", "trust", "-E", "UTF8", "--no-sync"]
    _run([*_AS_ANYBODY, *initdb, "--locale=C"])
    settings = {**_SETTINGS, "unix_socket_directories": str(folder)}
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    control = [*_AS_ANYBODY, str(programs / "pg_ctl"), "-D", str(data), "-w", "-t", str(int(SECONDS))]
    _run([*control, "-l", str(folder / "log"), "start"])
    try:
        yield folder
    finally:
        _run([*control, "-m", "immediate", "stop"])


def new_database(socket: Path, name: str) -> str:
    """URL of a new, empty database."""
    _run([str(_programs() / "createdb"), "-h", str(socket), "-U", "probe", name])
    return f"postgresql://probe@/{name}?host={socket}"


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * SECONDS, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
