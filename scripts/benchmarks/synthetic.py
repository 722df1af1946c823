# SPDX-License-Identifier: Apache-2.0
"""Measure what synthetic memory saves, what it costs, and whether it predicts the same: `scripts/bench synthetic`.

Each program is built once with its own data, and from the same work folder without them, so that both probes have the
same phases. Both probes are then run by turns on this machine.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUITE = {
    "stencil": ("4000",),
    "multigrid": ("20",),
    "conjugate": ("3000",),
    "fourier": ("800",),
    "molecules": ("4000",),
    "sorter": ("12",),
}
"""Programs of data/programs and their arguments; the last one sorts, where data are control flow."""

_STAGE = re.compile(r"^(?P<name>[a-z-]+): done in (?P<seconds>[\d.]+) s$", re.M)

Record = dict[str, Any]


def measure(names: Sequence[str], folder: Path, runs: int, say: Callable[[str], None]) -> Iterator[Record]:
    """A record for each program; `folder` takes probes and work folders."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "data" / "programs")], check=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        say(f"bench: {name}, with and without its data")
        yield _measured(name, folder, runs)


def _measured(name: str, folder: Path, runs: int) -> Record:
    program = ["--", str(ROOT / "data" / "programs" / "bin" / name), *SUITE[name]]
    real, less = folder / f"{name}.probe", folder / f"{name}-synthetic.probe"
    work = ["--work", str(folder / f"{name}.work")]
    load = os.getloadavg()[0]
    before = _stages("build", "-o", str(real), *work, *program)
    after = _stages("build", "-o", str(less), *work, "--resume", "--synthetic-data", *program)
    shown = json.loads(_probe("show", "--json", str(less)).stdout)
    added = after["synthesize"] + after["flatten"] - before["flatten"]
    proofs = [phase["synthetic"] for phase in shown["phases"]]
    verified = [proof for proof in proofs if not proof["refused"]]
    return {
        "name": f"synthetic-{name}",
        "load": [load, os.getloadavg()[0]],
        "bytes": [real.stat().st_size, less.stat().st_size],
        "real_share": shown["real_share"],
        "phases": len(proofs),
        "synthetic_phases": len(verified),
        "least_steps": min((proof["address_steps"] for proof in verified), default=None),
        "least_points": min((proof["points"] for proof in verified), default=None),
        "unknown_steps": sum(proof["unknown_steps"] for proof in verified),
        "time_ratios": [[proof["time_ratio"], proof["time_error"]] for proof in verified],
        "refused": sorted({proof["refused"] for proof in proofs if proof["refused"]}),
        "build_seconds": sum(before.values()),
        "added_seconds": added,
        "synthesize_seconds": after["synthesize"],
        "predictions": _predictions(real, less, runs),
    }


def _predictions(real: Path, less: Path, runs: int) -> list[list[float]]:
    """Predicted seconds by both probes, by turns."""
    found = []
    for _ in range(runs):
        pair = []
        for path in (real, less):
            said = json.loads(_probe("run", "-q", "--json", str(path)).stdout)
            pair.append(float(said["prediction"]["seconds"]))
        found.append(pair)
    return found


def _stages(*arguments: str) -> dict[str, float]:
    """Seconds of each stage of a build."""
    said = _probe(*arguments).stderr
    return {found["name"]: float(found["seconds"]) for found in _STAGE.finditer(said)}


def _probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "probe", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"probe {' '.join(arguments)} failed: {done.stderr.strip()[-800:]}")
    return done


def report(records: Sequence[Record]) -> str:
    """A table of the records."""
    lines = [
        "| program | probe | synthetic | real | phases | added to the build | time, real to synthetic | predictions |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        ratios = [ratio for ratio, _ in record["time_ratios"]]
        differ = [less / real - 1 for real, less in record["predictions"]]
        cells = [
            record["name"].removeprefix("synthetic-"),
            *(f"{size / 1e6:.2f} MB" for size in record["bytes"]),
            f"{record['real_share']:.2%}",
            f"{record['synthetic_phases']} of {record['phases']}",
            f"{record['added_seconds'] / record['build_seconds']:+.0%}",
            f"{statistics.median(ratios):.3f}" if ratios else "-",
            f"{statistics.median(differ):+.2%}" if differ else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    begun = time.monotonic()
    print(report(list(measure(sys.argv[2:] or list(SUITE), Path(sys.argv[1]), 3, print))))
    print(f"{time.monotonic() - begun:.0f} s")
