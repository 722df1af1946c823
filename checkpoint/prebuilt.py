# SPDX-License-Identifier: Apache-2.0
"""Programs that came compiled with this installation: in a wheel that was made where there was a compiler.

Each lies in `checkpoint/programs/`, named NAME-VERSION-SHA256: the version is that of its sources and options
(checkpoint/compiled.py), the rest is the program's own digest. A checkout has none. They are trusted as the modules
beside them are: the digests find damage and other sources, not forgery.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

FOLDER = Path(__file__).with_name("programs")


def look(name: str, version: str) -> tuple[Path | None, str]:
    """(the program, ""), or None and what is wrong with it: "" where none of this name came along."""
    found = sorted(FOLDER.glob(f"{name}-*-*"))
    fault = ""
    for path in found:
        made_of, told = path.name.removeprefix(f"{name}-").split("-", 1)
        if made_of != version:
            fault = f"{path} was made of other sources than those beside it"
            continue
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            fault = f"{path} cannot be read ({error.strerror})"
            continue
        if digest == told:
            return path, ""
        fault = f"{path} is damaged"
    return None, fault


def keep(program: Path, name: str, version: str, folder: Path) -> Path:
    """Copy a program into `folder`, under the name by which `look` finds it."""
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    return Path(shutil.copy(program, folder / f"{name}-{version}-{digest}"))
