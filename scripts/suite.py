# SPDX-License-Identifier: Apache-2.0
"""Runs all tests side by side, and the few that failed there once more, with nothing of the suite beside them.

A host's neighbours, and our own tests, take processors and memory from a test at any moment. What fails beside others
and passes alone is named at the end, for somebody to look into. Whatever fails alone, or too much, fails the suite.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

MOST_AGAIN = 8
"""Files whose failed tests are tried again. More at once are a mistake, not a disturbance.

Files, since a probe that many tests of a file share is built once, and fails them all.
"""

SLOWEST = 60
"""Tests of 20 seconds and more that are named at the end: there the whole suite's time is to be saved."""

_FAILED = 1
"""pytest's exit status when all could be run, and some failed."""


def main(arguments: list[str]) -> int:
    """pytest's exit status: that of the second try where there is one."""
    cache = Path("build/suite-cache")
    shutil.rmtree(cache, ignore_errors=True)
    status = _pytest(cache, "-n", "auto", f"--durations={SLOWEST}", "--durations-min=20", *arguments)
    failed = _failed(cache)
    if status != _FAILED or not 0 < len({name.partition("::")[0] for name in failed}) <= MOST_AGAIN:
        return status
    print(f"suite: {len(failed)} failed; once more, alone", flush=True)
    status = _pytest(cache, *arguments, "--last-failed", "--last-failed-no-failures=none", "-n", "0")
    for name in sorted(failed - _failed(cache)):
        print(f"suite: passed alone, failed beside others: {name}", flush=True)
    return status


def _pytest(cache: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "fast_first", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, check=False).returncode


def _failed(cache: Path) -> set[str]:
    """Tests that failed when they ran last, by pytest's own record of them."""
    record = cache / "v/cache/lastfailed"
    return set(json.loads(record.read_text())) if record.exists() else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
