# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a moment of the test's choice."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
