# SPDX-License-Identifier: Apache-2.0
"""Share of a region's CPU time that was spent in the kernel, by the kernel's own account, and how well that is known.

Most kernels do not stamp each change between program and kernel: at each tick the time since the last one counts as
the kernel's or the program's by where the tick fell. A share is therefore a sample, and has a standard error.
Standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

COARSEST_TICK = 0.01
"""Seconds between the ticks of the slowest kernels (CONFIG_HZ=100). Where they tick faster, errors are smaller than
said."""


@dataclass(frozen=True)
class KernelShare:
    """Share of the CPU time that was spent in the kernel, and its standard error."""

    share: float
    error: float


def kernel_share(kernel: Sequence[float | None], cpu: Sequence[float]) -> KernelShare | None:
    """Of several repeats, seconds each, taken together; None where one was not stamped.

    The error is that of a share of as many ticks, each falling by chance: sqrt(p (1 - p) / n), with half a tick added
    on both sides so that it is not 0 where no tick, or each, fell into the kernel.
    """
    whole = math.fsum(cpu)
    inside = [seconds for seconds in kernel if seconds is not None]
    if len(inside) < len(cpu) or not cpu or whole <= 0:
        return None
    share = min(1.0, math.fsum(inside) / whole)
    ticks = whole / COARSEST_TICK
    near = (share * ticks + 0.5) / (ticks + 1.0)
    return KernelShare(share, math.sqrt(near * (1.0 - near) / (ticks + 1.0)))
