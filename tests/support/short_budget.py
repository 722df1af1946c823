# SPDX-License-Identifier: Apache-2.0
"""A budget of seconds for commands of tests that name none: a run may take a minute else, and a build twice as long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SECONDS = 5
_NAMED = ("--budget", "--repeat", "--target-error", "--on", "--slurm", "--estimate")


def in_short(arguments: Sequence[str | Path]) -> list[str]:
    """The words of `probe ARGUMENTS`, with `--budget` where it builds or runs and says nothing about that."""
    words = list(map(str, arguments))
    if words[:1] in (["build"], ["run"]) and not any(word.startswith(_NAMED) for word in words):
        words[1:1] = ["--budget", str(SECONDS)]
    return words
