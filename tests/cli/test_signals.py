# SPDX-License-Identifier: Apache-2.0
"""Signals that come where Python drops what is raised: the command and the agent end all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_PLACES = {
    "plain": "send()",
    "code from text": "exec('send()')",
    "destructor": """
class Dropping:
    def __del__(self):
        send()
Dropping()
""",
    "before a fork": "os.register_at_fork(before=send); fork()",
    "after a fork": "os.register_at_fork(after_in_parent=send); fork()",
    "collection": "gc.callbacks.append(lambda phase, info: send()); gc.collect()",
    "twice": """
class Dropping:
    def __del__(self):
        send()
        time.sleep(60)
class Slow:
    def __del__(self):
        first = Dropping()
        del first
        time.sleep(60)
Slow()
""",
}
"""Where a signal comes. In the last one what is raised again is dropped again."""

_SCRIPT = """
import gc, os, signal, sys, time
sent = 0
def send():
    global sent
    sent += 1
    if sent == 1:
        os.kill(os.getpid(), {number})
def fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
def work(*_, **__):
    try:
{place}
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
{entry}
"""

_COMMAND = "import probe.cli.main; probe.cli.main.cli.main = work; probe.cli.main.main(['show'])"
_AGENT = "import probe.node.agent as agent; agent._serve = work; agent.main('.')"


@pytest.mark.parametrize("place", [*_PLACES])
@pytest.mark.parametrize(
    ("entry", "number", "status"),
    [(_COMMAND, signal.SIGTERM, 143), (_COMMAND, signal.SIGINT, 130), (_AGENT, signal.SIGTERM, 3)],
    ids=["command-term", "command-int", "agent"],
)
def test_a_signal_is_never_lost(place: str, entry: str, number: signal.Signals, status: int, tmp_path: Path) -> None:
    indented = "\n".join(" " * 8 + line for line in _PLACES[place].strip().splitlines())
    # A module, as `python -m probe` is: Python ends by SIGINT there where it does not for other programs.
    (tmp_path / "signalled.py").write_text(_SCRIPT.format(number=int(number), place=indented, entry=entry))
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "signalled"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    # What the agent prints goes to standard error.
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert "cleaned up" in said and "Traceback" not in said
    assert time.monotonic() - begun < 30


def test_what_else_python_drops_is_told_as_ever() -> None:
    script = """
from probe.signals import leave_on
leave_on([15], lambda number: SystemExit(3))
class Failing:
    def __del__(self):
        raise ValueError("of its own")
Failing()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0 and "Exception ignored" in done.stderr and "ValueError: of its own" in done.stderr
