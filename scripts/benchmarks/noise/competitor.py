# SPDX-License-Identifier: Apache-2.0
"""Start a competitor for cache and memory on the other processor."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probe.node.measuring import measuring_cpu

SOURCE = Path(__file__).with_name("competitor.c")
KIND = "cache and memory bandwidth, on for 50 % of the time in bursts of 0.05 to 5 s, on the other processor"


@contextmanager
def competing(folder: Path, seed: int) -> Iterator[None]:
    """A competitor runs inside, compiled into `folder`. Raises ValueError on a machine with one processor."""
    others = sorted(os.sched_getaffinity(0) - {measuring_cpu()})
    if measuring_cpu() is None:
        raise ValueError("a competitor beside the program needs two processors")
    program = folder / "competitor"
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-o", str(program), str(SOURCE), "-lm"], check=True)
    running = subprocess.Popen([str(program), str(others[0]), str(seed)])
    try:
        yield
    finally:
        running.kill()
        running.wait()
