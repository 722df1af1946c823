# SPDX-License-Identifier: Apache-2.0
"""Native programs of this project: compiled once per version of their sources, kept in the cache.

What a wheel brings compiled, of the same sources, is taken from there (checkpoint/prebuilt.py).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpoint import prebuilt
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
    """Path of `compiler` OPTIONS applied to `sources` (headers are only part of the version): what came compiled with
    this installation, else in the folder `place` or in the cache. Raises ToolMissing, StorageError.

    `libraries`: options that must come last, such as -lgcc. `compiler`: another than this machine's own.
    """
    version = _version(sources, (*(() if compiler == "cc" else (compiler,)), *compile_options, *libraries))
    brought, fault = prebuilt.look(name, version)
    if brought is not None:
        return brought
    kept = (place or own_programs()) / f"{name}-{version}"
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
            if fault:
                raise ToolMissing(
                    f"no C compiler ({compiler}), and what came compiled cannot be used: {fault}; "
                    "install the wheel again, or gcc"
                ) from error
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


def _version(sources: Sequence[Path], words: Sequence[str]) -> str:
    """16 hexadecimal digits of the command's words and of the sources."""
    digest = hashlib.sha256("\0".join(words).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


_HERE = Path(__file__).parent

# Compilers of some distributions take every processor to be a new one: what they make travels to others.
_ANY_PROCESSOR = "-march=x86-64"

# Position independent without relocations, general registers alone: the code is copied and runs elsewhere.
RESTORER_OPTIONS = (
    "-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffreestanding", "-nostdlib", "-static-pie",
    "-fPIE", "-fvisibility=hidden", "-fno-stack-protector", "-fcf-protection=none", "-fno-asynchronous-unwind-tables",
    "-mgeneral-regs-only", "-fno-tree-loop-distribute-patterns", "-fno-jump-tables", "-Wl,-z,noseparate-code",
    "-Wl,-z,norelro", "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none", "-Wl,--no-dynamic-linker", "-s",
    _ANY_PROCESSOR,
)  # fmt: skip

# Without a C library of its own: the one that Python has loaded serves, whatever its version.
_LIBRARY_OPTIONS = (
    "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-nostdlib", _ANY_PROCESSOR,
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """A program that making and running probes needs on every machine, and how it is compiled."""

    name: str
    sources: tuple[Path, ...]
    options: tuple[str, ...]
    libraries: tuple[str, ...] = ()

    def made(self, place: Path | None = None) -> Path:
        """Its path, as `built` says."""
        return built(self.name, self.sources, self.options, libraries=self.libraries, place=place)

    def brought(self) -> tuple[Path | None, str]:
        """What came compiled with this installation, as prebuilt.look says."""
        return prebuilt.look(self.name, self._version())

    def prepare(self, folder: Path) -> Path:
        """Compile it into the package folder `folder` of a wheel. Raises ToolMissing."""
        with tempfile.TemporaryDirectory() as place:
            return prebuilt.keep(self.made(Path(place)), self.name, self._version(), folder)

    def _version(self) -> str:
        return _version(self.sources, (*self.options, *self.libraries))


RESTORER = Recipe("restorer", tuple(sorted((_HERE / "restorer").glob("*.[ch]"))), RESTORER_OPTIONS)
STUBS = Recipe("stubs.o", (_HERE / "stubs" / "stubs.S",), ("-c", "-Wall", "-Wa,--fatal-warnings"))
ANSWERS = Recipe("answers.o", (_HERE / "stubs" / "answers.S",), ("-c", "-Wall", "-Wa,--fatal-warnings"))
WALL_CLOCK = Recipe("wall_clock.o", (_HERE / "stubs" / "wall_clock.S",), ("-c", "-Wall", "-Wa,--fatal-warnings"))
NUMBERS = Recipe("numbers.so", (_HERE / "flow" / "numbers.c",), ("-O3", *_LIBRARY_OPTIONS), ("-lgcc",))
STEP = Recipe("step.so", (_HERE / "flow" / "step.c",), ("-O2", *_LIBRARY_OPTIONS))
RECIPES = (RESTORER, STUBS, ANSWERS, WALL_CLOCK, NUMBERS, STEP)
"""All that `probe build`, `probe run` and `probe check` need. Other commands and tracers compile more."""


def faults_of_brought() -> list[str] | None:
    """What is wrong with the programs that came compiled with this installation, [] where nothing is; None where it
    came without any."""
    if not prebuilt.FOLDER.is_dir():
        return None
    looked = [(recipe.name, *recipe.brought()) for recipe in RECIPES]
    return [fault or f"{prebuilt.FOLDER} lacks {name}" for name, program, fault in looked if program is None]


def restorer() -> Path:
    """The direct restorer, an executable of a few kilobytes."""
    return RESTORER.made()


def restorer_bytes() -> bytes:
    """The same program, also for a user who may not write to the cache."""
    try:
        return restorer().read_bytes()
    except (StorageError, OSError):
        with tempfile.TemporaryDirectory(prefix="probe-restorer-") as folder:
            return RESTORER.made(Path(folder)).read_bytes()
