# SPDX-License-Identifier: Apache-2.0
"""Launchers of MPI programs: started in a group of their own, and ended with their ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_PATIENCE = 10.0
"""Seconds that a launcher may take to end its ranks."""


def started(command: Sequence[str], given: Mapping[str, str], printed: IO[bytes]) -> subprocess.Popen[bytes]:
    """The launcher, in the environment `given`; what it and its ranks print goes into the file. Raises OSError."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, env=given, start_new_session=True
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the launcher to end, which ends its ranks with it; whoever of its group is left is killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
