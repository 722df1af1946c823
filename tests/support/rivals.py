# SPDX-License-Identifier: Apache-2.0
"""Work that competes with what a test measures."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def rivals(cpu: int, processes: int) -> Iterator[None]:
    """Others that want this processor all the time, from now on.

    A session each: the scheduler shares a processor among sessions first, so all of one session would get but a half.
    """
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    with contextlib.ExitStack() as stack:
        for _ in range(processes):
            one = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
            )
            stack.callback(one.kill)
            assert one.stdout and one.stdout.readline()
        yield
