# SPDX-License-Identifier: Apache-2.0
"""Wheels bring compiled what making and running probes needs, where they are made on x86-64 with a C compiler.

Elsewhere, and in an editable installation, it is compiled when it is first needed. All the rest is in pyproject.toml.
"""

from __future__ import annotations

import functools
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))

from checkpoint.compiled import RECIPES  # noqa: E402
from checkpoint.errors import ToolMissing  # noqa: E402

FOLDER = Path("checkpoint", "programs")


@functools.cache
def programs() -> dict[str, bytes]:
    """The compiled programs by the names of their files; none where they cannot be compiled, which is said."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return {}
    try:
        with tempfile.TemporaryDirectory() as name:
            made = [recipe.prepare(Path(name)) for recipe in RECIPES]
            return {path.name: path.read_bytes() for path in made}
    except ToolMissing as error:
        print(f"warning: this wheel brings no compiled programs: {error}", file=sys.stderr)
        return {}


class PerhapsCompiled(Distribution):
    """Of one platform where compiled programs are in it."""

    def has_ext_modules(self) -> bool:
        return "bdist_wheel" in self.commands and bool(programs())


class Modules(build_py):
    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib) / FOLDER
        # Of an earlier build, whose sources may have been others.
        shutil.rmtree(folder, ignore_errors=True)
        for name, program in (programs() if self.distribution.has_ext_modules() else {}).items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(program)
            (folder / name).chmod(0o755)


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        # No program in it is for one version of Python.
        return ("py3", "none", super().get_tag()[2])


setup(distclass=PerhapsCompiled, cmdclass={"build_py": Modules, "bdist_wheel": Wheel})
