# SPDX-License-Identifier: Apache-2.0
"""Run a command; kill its whole group on a timeout or an interrupt."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def run_group(
    command: Sequence[str],
    timeout: float,
    *,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run `command` in a session of its own; return its exit status and its joined output.

    The whole group is killed on timeout (subprocess.TimeoutExpired is raised then) and on Ctrl-C: CRIU and compilers
    start helpers that would otherwise go on alone.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=pass_fds,
        env=environment,
        text=True,
        errors="replace",
    ) as process:
        try:
            printed, _ = process.communicate(timeout=timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return process.returncode, printed
