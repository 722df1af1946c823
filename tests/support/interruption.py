# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a moment of the test's choice, and the end by a signal as soon as there is something to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from probe.signals import leave_on


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """What is done inside is interrupted after so long, and has to end by that."""
    handler, hook = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    leave_on([signal.SIGALRM], lambda _: KeyboardInterrupt())
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        sys.unraisablehook = hook


def status_when_told_to_end(
    command: Sequence[str], environment: Mapping[str, str], ready: Callable[[], bool] = lambda: True
) -> int:
    """Exit status of a command that gets SIGTERM when it is ready and has a child, which has to be gone with it."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet) as started:
        limit = time.monotonic() + 60
        while not (ready() and _children(started.pid)):
            assert started.poll() is None and time.monotonic() < limit
            time.sleep(0.02)
        # It may still be starting its child.
        time.sleep(0.5)
        children = _children(started.pid)
        started.terminate()
        status = started.wait(60)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    return status


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
