# SPDX-License-Identifier: Apache-2.0
"""Read what a call of sbatch asks for: on its command line, in the environment, in the script's #SBATCH lines."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from checkpoint.errors import ProbeError, StorageError
from checkpoint.foreign_file import read_foreign

_SHORT: Final = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name",
    "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "S": "core-spec", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""Short options that take a value. The others stand alone."""

_ALONE: Final = {
    "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill", "no-requeue",
    "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue", "spread-job",
    "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
}  # fmt: skip
"""Long options without a value, or with one after `=` alone."""

_ENVIRONMENT: Final = {
    "time": "SBATCH_TIMELIMIT", "partition": "SBATCH_PARTITION", "constraint": "SBATCH_CONSTRAINT",
}  # fmt: skip

_MOST_SCRIPT: Final = 4 << 20
"""Bytes of a script: Slurm's own limit, if it is not set higher."""


@dataclass(frozen=True)
class SbatchCall:
    """arguments: as given. asked: value by long name of option, wherever it stands. script: its text, "" for --wrap.

    piped: whether the script came from standard input.
    """

    arguments: tuple[str, ...]
    asked: Mapping[str, str]
    script: str
    piped: bool

    @property
    def standard_input(self) -> str:
        """What sbatch must read from there."""
        return self.script if self.piped else ""


def read_call(arguments: Sequence[str], standard_input: TextIO | None = None) -> SbatchCall:
    """Understand a call of sbatch as sbatch does: the command line before the environment, that before the script.

    standard_input is read where no script is named, and only then. Raises ProbeError, StorageError.
    """
    asked, rest = _options(arguments)
    script, from_input = "", False
    if rest is not None:
        try:
            script = read_foreign(Path(rest), _MOST_SCRIPT).decode(errors="replace")
        except StorageError as error:
            raise StorageError(f"{error}; sbatch needs a script that can be read") from error
    elif "wrap" not in asked:
        piped = standard_input.read() if standard_input and not standard_input.isatty() else ""
        if not piped:
            raise ProbeError("nothing to submit: name a script, give --wrap, or pipe the script in")
        script, from_input = piped, True
    environment = {name: os.environ[key] for name, key in _ENVIRONMENT.items() if os.environ.get(key)}
    return SbatchCall(tuple(arguments), {**_directives(script), **environment, **asked}, script, from_input)


def _options(arguments: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Options by long name, and the script: the first word that is no option and no value of one."""
    found: dict[str, str] = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if word == "--":
            return found, arguments[position] if position < len(arguments) else None
        if not word.startswith("-") or word == "-":
            return found, word
        following = arguments[position] if position < len(arguments) else ""
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _ALONE:
                value = following
                position += 1
            found[name] = value
        elif word[1] in _SHORT:
            if len(word) == 2:
                position += 1
            found[_SHORT[word[1]]] = word[2:] or following
    return found, None


def _directives(script: str) -> dict[str, str]:
    """Options of the #SBATCH lines, which end at the first command."""
    found: dict[str, str] = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if directive := re.match(r"#SBATCH\s+(.*)", line):
            try:
                words = shlex.split(directive[1], comments=True)
            except ValueError:
                continue
            found.update(_options(words)[0])
    return found
