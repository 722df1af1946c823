# SPDX-License-Identifier: Apache-2.0
"""End a forked process with its parent, whenever that dies. Python 3.8, standard library."""

from __future__ import annotations

import ctypes
import os
import signal

from checkpoint.linux import PR_SET_PDEATHSIG

# Loaded before anything is forked.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """From now on this process ends when `parent`, which forked it, does; at once if that has happened already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
