# SPDX-License-Identifier: Apache-2.0
"""Choose the processors that measured processes get. Python 3.8, standard library."""

from __future__ import annotations

import os


def processors(cpu: int, threads: int) -> list[int]:
    """Those that `threads` threads get: `cpu`, then those nearest below it, then above it, of all that this process may
    use, `cpu` among them; fewer where there are not as many."""
    allowed = sorted(os.sched_getaffinity(0) | {cpu})
    at = allowed.index(cpu)
    return (allowed[at::-1] + allowed[at + 1 :])[:threads]
