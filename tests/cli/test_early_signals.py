# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the first second: one sentence and 130, whatever is being loaded just then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TIMES = 25


def started() -> subprocess.Popen[str]:
    """`probe build`, which loads the most, up to where it catches signals: before that Python itself is loading."""
    process = subprocess.Popen(
        [sys.executable, "-m", "probe", "build", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    while process.poll() is None and not catches(process.pid, signal.SIGTERM):
        time.sleep(0.0005)
    return process


def catches(pid: int, number: int) -> bool:
    caught = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return bool(int(caught[0].split()[1], 16) >> number - 1 & 1) if caught else False


def test_signals_are_caught_before_libraries_are_loaded() -> None:
    with started() as process:
        os.kill(process.pid, signal.SIGSTOP)
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(timeout=60)
    assert "python" in mapped and "numpy" not in mapped and "_ssl" not in mapped and "select" not in mapped


def test_an_interrupt_in_the_first_second() -> None:
    choose = random.Random(3)
    statuses = set()
    for _ in range(_TIMES):
        with started() as process:
            time.sleep(choose.uniform(0.0, 0.4))
            os.kill(process.pid, signal.SIGINT)
            shown, said = process.communicate(timeout=60)
        assert "Traceback" not in said, said
        # Where all is done Python itself takes the signal as it is, and ends by it.
        if process.returncode != 0 and not (process.returncode == -signal.SIGINT and shown.startswith("Usage")):
            assert (process.returncode, said.lstrip()) == (130, "probe: interrupted; nothing was left running\n")
        statuses.add(process.returncode)
    assert 130 in statuses


def test_a_reader_that_has_gone() -> None:
    """As in `probe ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "probe", "completion", "bash"], stdout=out, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
