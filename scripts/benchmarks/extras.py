# SPDX-License-Identifier: Apache-2.0
"""Figures that are not about one of the programs: installing many sites, one pass over a long program's phases."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from programs import build

from benchmarks.measure import measure, probe_command
from benchmarks.programs import LONG, Benchmark
from probe.formats.profile import load_profile


def install_time(folder: Path) -> dict[str, Any]:
    """Seconds to install the counting stubs of a program of some 100,000 sites, image decoding included."""
    path = build("bigtext", folder / "programs")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        target = Path(temporary) / "bigtext.profile"
        status, _, said = probe_command(
            Benchmark("bigtext", (str(path),), ""), folder, "trace", "-q", "-o", str(target), "--interval", "5ms", "--",
            str(path), "3000",
        )  # fmt: skip
        if status:
            return {"name": "install", "failure": said}
        profile = load_profile(target)
    return {"name": "install", "sites": profile.installed_sites, "seconds": profile.install_seconds}


def one_pass(data: Path, folder: Path, patience: float) -> dict[str, Any]:
    """A program of a minute, its probe run once: the cost of a pass against the native time."""
    record = measure(LONG, data=data, folder=folder, plain_runs=1, repeats=1, patience=patience, keep=False)
    if "figures" in record:
        found = record["figures"]
        found["regions_share"] = found["regions_seconds"] / found["native"]
        found["one_pass_share"] = found["one_pass_seconds"] / found["native"]
    return record
