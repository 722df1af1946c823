# SPDX-License-Identifier: Apache-2.0
"""Readers of applications of blocks, of their machines, and of bandwidths by the size of messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.errors import ModelInvalid, ProbeError, StorageError
from fuzzing.reader import Reader
from probe.applications.network import read_bandwidths
from probe.dataflow.application import read_data_application
from probe.dataflow.machine import read_disk_machine
from probe.dataflow.work import place

_EXAMPLES = Path(__file__).parents[2] / "examples" / "dataflow"


def _applications(_folder: Path) -> Sequence[bytes]:
    return [(_EXAMPLES / f"{name}.toml").read_bytes() for name in ("titan", "pathfinder", "microscope", "small")]


def _machines(_folder: Path) -> Sequence[bytes]:
    return [(_EXAMPLES / "sp2.toml").read_bytes()]


def _bandwidths(_folder: Path) -> Sequence[bytes]:
    return [b"# size MB/s\n1 0.8\n64 47.8\n4096 749\n65536 1092\n4194304 1174\n"]


def _apply(data: bytes, folder: Path) -> Any:
    (folder / "a.toml").write_bytes(data)
    application = read_data_application(folder / "a.toml")
    for line in place(application, read_disk_machine(_EXAMPLES / "sp2.toml"), 64).text(0.1).splitlines()[:-1]:
        # The engines read numbers; a word there would be taken for 0.
        assert all(np.isfinite(float(word)) for word in line.split()[1:]), line
    return None


def _machine(data: bytes, folder: Path) -> Any:
    (folder / "m.toml").write_bytes(data)
    found = read_disk_machine(folder / "m.toml").settings()
    assert all(np.isfinite(value) and value >= 0 for value in found.values())
    return None


def _network(data: bytes, folder: Path) -> Any:
    (folder / "n.txt").write_bytes(data)
    found = read_bandwidths(folder / "n.txt")
    assert np.isfinite(found.slowness(np.array([1.0, 1e5, 1e9]))).all()
    return None


READERS = (
    Reader("data-application", _applications, _apply, (ModelInvalid, StorageError)),
    Reader("disk-machine", _machines, _machine, (ModelInvalid, StorageError)),
    Reader("bandwidths", _bandwidths, _network, (ProbeError, StorageError)),
)
