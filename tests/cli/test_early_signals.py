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

import pytest

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


_WATCHED = """
import posix, sys
from _signal import SIGINT, default_int_handler, getsignal
class Watch:
    def find_spec(name, path=None, target=None):
        if getsignal(SIGINT) is default_int_handler:
            posix.write(1, name.encode() + b" ")
        elif name == sys.argv[1]:
            posix.kill(posix.getpid(), SIGINT)
sys.path.insert(0, sys.argv[2])
sys.meta_path.insert(0, Watch)
from probe.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["probe.signals", "signal", "enum", "typing", "probe.cli", "probe.cli.main"])
def test_nothing_is_loaded_before_an_interrupt_is_caught(name: str) -> None:
    """Ctrl-C comes while a module is looked for: the command's script loads no more than these before."""
    command = [sys.executable, "-I", "-S", "-c", _WATCHED, name, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["probe", "__future__", "probe.__main__"]
    assert (done.returncode, done.stderr) == (130, "probe: interrupted; nothing was left running\n")


_WHILE_MADE = """
import dataclasses, os, signal, sys
def sent(field, owner, name):
    if owner.__name__ == "ReplacedMapping":
        os.kill(os.getpid(), getattr(signal, sys.argv.pop()))
dataclasses.Field.__set_name__ = sent
from probe.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("SIGINT", 130, "probe: interrupted; nothing was left running\n"), ("SIGTERM", 143, "")],
)
def test_a_signal_while_a_class_is_made(name: str, status: int, said: str) -> None:
    """What `__set_name__` raises comes out of Python 3.11 as a RuntimeError."""
    done = subprocess.run(
        [sys.executable, "-c", _WHILE_MADE, "build", "--help", name], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.lstrip()) == (status, "", said)


def test_an_ignored_interrupt_stays_ignored() -> None:
    """As nohup and shells' background jobs have it, from the first line on."""
    script = f"trap '' INT; exec {sys.executable} -I -S -c \"$0\" probe.signals {ROOT}"
    done = subprocess.run(["sh", "-c", script, _WATCHED], capture_output=True, text=True, check=False)
    # Without its packages it gets as far as the first of them.
    assert "No module named 'click'" in done.stderr and "interrupted" not in done.stderr


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
