# SPDX-License-Identifier: Apache-2.0
"""A budget of seconds, and one plain run, for commands of tests that name none: a run may take a minute else, and a
build twice as long.

As a program it is the `probe` command with such a budget.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SECONDS, RUNS = 2, 1
_COUNTED = ("--runs", "--estimate", "--target-error")
_NAMED = ("--budget", "--repeat", "--target-error", "--on", "--slurm", "--estimate")


def in_short(arguments: Sequence[str | Path]) -> list[str]:
    """The words of `probe ARGUMENTS`, with `--budget`, and `--runs` of a build, where they say nothing of these."""
    words = list(map(str, arguments))
    if words[:1] == ["build"] and not any(word.startswith(_COUNTED) for word in words):
        words[1:1] = ["--runs", str(RUNS)]
    if words[:1] in (["build"], ["run"]) and not any(word.startswith(_NAMED) for word in words):
        words[1:1] = ["--budget", str(SECONDS)]
    return words


def with_short(probe_command: Callable[..., Any], phases: int) -> Callable[..., Any]:
    """`probe_command` of the benchmarks, for a test that wants their records and not their accuracy: builds have few
    phases."""

    def shortened(benchmark: Any, folder: Path, *arguments: str, **options: Any) -> Any:
        words = in_short(arguments)
        if words[0] == "build":
            words[1:1] = ["--max-phases", str(phases)]
        return probe_command(benchmark, folder, *words, **options)

    return shortened


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "probe", *in_short(sys.argv[1:])])
