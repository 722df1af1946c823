# SPDX-License-Identifier: Apache-2.0
"""CRIU into a probe (`probe build --with-criu`), for nodes that have none: its program, libraries and loader.

Laid out as the private CRIU is (checkpoint/criu/private_copy.py), so that the same code finds and starts it there; the
loader comes along, since a node's own belongs to another C library.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

from checkpoint.criu.tool import MULTIARCH, Criu
from checkpoint.errors import CriuError

_SECONDS = 20.0
_LIBRARY = re.compile(r"^\s*(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_LOADER = "ld-linux-x86-64.so.2"


def pack_criu(criu: Criu) -> bytes:
    """A tar archive of what this CRIU consists of; the same bytes for the same CRIU. Raises CriuError."""
    program = Path(criu.command[-1])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "usr/sbin/criu", program)
        for name, path in sorted(_libraries(criu, program).items()):
            _add(tar, f"usr/lib/{MULTIARCH}/{name}", path)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    entry = tarfile.TarInfo(name)
    try:
        entry.size, entry.mode = path.stat().st_size, 0o755
        with path.open("rb") as file:
            tar.addfile(entry, file)
    except OSError as error:
        raise CriuError(f"{path}: is part of CRIU and cannot be read: {error.strerror}") from error


def _libraries(criu: Criu, program: Path) -> dict[str, Path]:
    """File names and paths of the libraries that the loader would load, and of the loader."""
    prefix = list(criu.command[:-1]) or [f"/lib64/{_LOADER}"]
    done = subprocess.run(
        [*prefix, "--list", str(program)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
    )
    found = {match["name"] or Path(match["path"]).name: Path(match["path"]) for match in _LIBRARY.finditer(done.stdout)}
    libraries = {Path(name).name: path for name, path in found.items()}
    libraries[_LOADER] = Path(prefix[0])
    if done.returncode or "libc.so.6" not in libraries:
        raise CriuError(f"the libraries of {program} cannot be listed: {(done.stderr or done.stdout).strip()[:300]}")
    return libraries
