# SPDX-License-Identifier: Apache-2.0
"""Native programs of this project: compiled once per version of their sources, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from checkpoint.errors import StorageError, ToolMissing
from checkpoint.paths import HOME_VARIABLE, SHARED, cache_dir, is_shared
from checkpoint.run_command import run_group

_SECONDS = 120


def built(
    name: str,
    sources: Sequence[Path],
    compile_options: Sequence[str],
    *,
    libraries: Sequence[str] = (),
    place: Path | None = None,
    compiler: str = "cc",
) -> Path:
    """Path of `compiler` OPTIONS applied to `sources` (headers are only part of the version), in the folder `place` or
    in the cache. Raises ToolMissing, StorageError.

    `libraries`: options that must come last, such as -lgcc. `compiler`: another than this machine's own.
    """
    named = () if compiler == "cc" else (compiler,)
    digest = hashlib.sha256("\0".join((*named, *compile_options, *libraries)).encode())
    for source in sources:
        digest.update(source.read_bytes())
    kept = (place or own_programs()) / f"{name}-{digest.hexdigest()[:16]}"
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        fresh = Path(folder) / name
        command = [compiler, *compile_options, "-o", str(fresh), *(str(s) for s in sources if s.suffix != ".h")]
        command += libraries
        try:
            # Its temporary files go with the folder, also where it is interrupted.
            status, said = run_group(command, _SECONDS, environment={**os.environ, "TMPDIR": folder})
        except FileNotFoundError as error:
            raise ToolMissing(f"no C compiler ({compiler}): install gcc, or run `probe doctor --fix`") from error
        except subprocess.TimeoutExpired as error:
            raise ToolMissing(f"compiling {name} did not end within {_SECONDS} s") from error
        if status:
            raise ToolMissing(f"compiling {name} failed: {said.strip()[-2000:]}")
        fresh.replace(kept)
    return kept


def own_programs() -> Path:
    """The folder of programs compiled here. Not created. Raises StorageError where others could have put some there."""
    folder = cache_dir() / "native"
    if is_shared(folder):
        raise StorageError(f"{folder}: {SHARED}; set {HOME_VARIABLE} to a folder of your own")
    return folder


_RESTORER = Path(__file__).with_name("restorer")

# Position independent without relocations, general registers alone: the code is copied and runs elsewhere.
RESTORER_OPTIONS = (
    "-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffreestanding", "-nostdlib", "-static-pie",
    "-fPIE", "-fvisibility=hidden", "-fno-stack-protector", "-fcf-protection=none", "-fno-asynchronous-unwind-tables",
    "-mgeneral-regs-only", "-fno-tree-loop-distribute-patterns", "-fno-jump-tables", "-Wl,-z,noseparate-code",
    "-Wl,-z,norelro", "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none", "-Wl,--no-dynamic-linker", "-s",
)  # fmt: skip


def restorer() -> Path:
    """The direct restorer, an executable of a few kilobytes."""
    return _restorer(None)


def restorer_bytes() -> bytes:
    """The same program, also for a user who may not write to the cache."""
    try:
        return restorer().read_bytes()
    except (StorageError, OSError):
        with tempfile.TemporaryDirectory(prefix="probe-restorer-") as folder:
            return _restorer(Path(folder)).read_bytes()


def _restorer(place: Path | None) -> Path:
    return built("restorer", sorted(_RESTORER.glob("*.[ch]")), RESTORER_OPTIONS, place=place)
