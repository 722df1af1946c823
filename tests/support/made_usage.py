# SPDX-License-Identifier: Apache-2.0
"""Makes resource profiles through the data classes, as long as a test wants."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.emulation.usage import AMOUNT, LEVEL, Column, Endpoint, Header, ProfiledNode, Usage

NODE = ProfiledNode("n1", "Some Processor", "x86_64", "6.1.0", 2, 2.6e9, 8 << 30, 0.5, "ext4")
_AMOUNTS = {
    "cpu_user": ("s", 0.04), "cpu_kernel": ("s", 0.01), "read": ("B", 1e6), "written": ("B", 5e5),
    "read_calls": ("calls", 10.0), "write_calls": ("calls", 5.0), "run_queue": ("s", 0.0),
}  # fmt: skip


def made_usage(samples: int, /, kernels: dict[str, float] | None = None, **values: float) -> Usage:
    """A profile of samples of 50 ms, in each of which the same is used; `values` replaces columns' values."""
    columns = {name: Column(AMOUNT, unit, "made") for name, (unit, _) in _AMOUNTS.items()}
    columns["resident"] = Column(LEVEL, "B", "made")
    columns["flops"] = Column(AMOUNT, "operations", "", "made without")
    said: dict[str, Any] = {name: value for name, (_, value) in _AMOUNTS.items()} | {"resident": 4e6} | values
    arrays = {name: np.full(samples, said[name]) for name in columns if name != "flops"}
    header = Header(
        command=("./solver", "big"), tags={"size": "big"}, folder="/tmp", started=1.7e9, exit_status=0, node=NODE,
        columns=columns, endpoints=(Endpoint("192.0.2.7", 80, 1000.0, 10.0),), kernels=dict(kernels or {}),
        notes=("made",),
    )  # fmt: skip
    return Usage(header, 0.05 * np.arange(1, samples + 1), {**arrays, "flops": np.full(samples, np.nan)})
