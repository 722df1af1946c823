# SPDX-License-Identifier: Apache-2.0
"""Measure what synthetic memory saves, what it costs, and whether it predicts the same: `scripts/bench synthetic`.

Each program is built once with its own data, and from the same work folder without them, so that both probes have the
same phases. Both probes are then run by turns on this machine, and afterwards on the emulated node.
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

from benchmarks.emulated import measurement as emulated
from benchmarks.programs import WITH_DATA
from checkpoint.errors import ProbeError

ROOT = Path(__file__).parents[2]
_ADDING = ("flatten", "synthesize", "pack")
"""Stages whose time depends on the option alone: the first records the flow, too. The self-check goes on for as long as
its repeats differ."""

_PROOF = ("address_steps", "points", "unknown_steps", "executions", "trials", "time_ratio", "time_error", "refused")

_MOST_THERE = 800e6
"""Bytes of a probe that the emulated node's disk holds, packed and unpacked."""

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
    program = ["--", str(ROOT / "data" / "programs" / "bin" / name), *WITH_DATA[name]]
    real, less = folder / f"{name}.probe", folder / f"{name}-synthetic.probe"
    work = ["--work", str(folder / f"{name}.work")]
    load = os.getloadavg()[0]
    before = _stages("build", "-o", str(real), *work, *program)
    # What this build has written is not to be waited for by the next one.
    os.sync()
    begun = time.monotonic()
    after = _stages("build", "-o", str(less), *work, "--resume", "--synthetic-data", *program)
    built = time.monotonic() - begun
    shown = json.loads(run_probe("show", "--json", str(less)).stdout)
    added = sum(after.get(stage, 0.0) - before.get(stage, 0.0) for stage in _ADDING)
    begun = time.monotonic()
    predictions = _predictions(real, less, runs)
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
        "predictions": predictions,
        "seconds": {"build": sum(before.values()), "again": built, "runs": time.monotonic() - begun},
        "proofs": [{name: proof[name] for name in _PROOF} for proof in proofs],
    }


def _predictions(real: Path, less: Path, runs: int) -> list[list[float]]:
    """Predicted seconds by both probes, by turns."""
    found = []
    for _ in range(runs):
        pair = []
        for path in (real, less):
            said = json.loads(run_probe("run", "-q", "--json", str(path)).stdout)
            pair.append(float(said["prediction"]["seconds"]))
        found.append(pair)
    return found


def measure_there(names: Sequence[str], folder: Path, clock: str, say: Callable[[str], None]) -> Iterator[Record]:
    """Predictions on the emulated node by both probes that `measure` left in `folder`; a record for each program.

    By the clock of instructions equal work takes equal time there, and once is enough."""
    try:
        subprocess.run([str(emulated.NODE), "start"], check=True, env={**os.environ, "CLOCK": clock})
        for name in names:
            probes = [folder / f"{name}.probe", folder / f"{name}-synthetic.probe"]
            if not all(path.exists() and path.stat().st_size <= _MOST_THERE for path in probes):
                say(f"bench: {name}: no probes, or too large for the emulated node")
                continue
            say(f"bench: {name}, on the emulated node")
            yield {"name": record_name(name, clock), **_predicted_there(probes, 1 if clock else emulated.REPEATS)}
    finally:
        subprocess.run([str(emulated.NODE), "stop"], check=True)


def record_name(name: str, clock: str) -> str:
    """That of a record of `measure_there`."""
    return f"synthetic-{emulated.prefix(clock)}-{name}"


def _predicted_there(probes: Sequence[Path], repeats: int) -> Record:
    seconds = []
    try:
        for path in probes:
            emulated.on_node("rm -rf .cache/probe-node")
            found = emulated.measure_there(path, repeats)
            assert found.result is not None
            if failures := [phase.failure for phase in found.result.phases if phase.failure]:
                return {"failure": failures[0]}
            seconds.append(found.result.prediction.seconds)
    except (ValueError, ProbeError, subprocess.SubprocessError) as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    return {"real": seconds[0], "synthetic": seconds[1]}


def report_there(records: Sequence[Record]) -> str:
    """A table of the records of `measure_there`."""
    lines = ["| program | own data | synthetic | differ by |", "|---|---|---|---|"]
    for record in records:
        if "failure" in record:
            lines.append(f"| {_program(record)} | {record['failure']} | | |")
        else:
            real, less = record["real"], record["synthetic"]
            lines.append(f"| {_program(record)} | {real:.3f} s | {less:.3f} s | {less / real - 1:+.2%} |")
    return "\n".join(lines)


def _stages(*arguments: str) -> dict[str, float]:
    """Seconds of each stage of a build."""
    said = run_probe(*arguments).stderr
    return {found["name"]: float(found["seconds"]) for found in _STAGE.finditer(said)}


def run_probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The `probe` command of this checkout, which must succeed. Raises SystemExit."""
    done = subprocess.run(
        [sys.executable, "-m", "probe", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"probe {' '.join(arguments)} failed: {done.stderr.strip()[-800:]}")
    return done


def report(records: Sequence[Record]) -> str:
    """A table of the records, and one of their phases: a phase that is synthetic has no differing count, call or
    address, or it would not be."""
    lines = [
        "| program | probe | synthetic | real | phases | added to the build | predictions, in the median (worst) |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records:
        differ = [less / real - 1 for real, less in record["predictions"]]
        cells = [
            _program(record),
            *(f"{size / 1e6:.2f} MB" for size in record["bytes"]),
            f"{record['real_share']:.2%}",
            f"{record['synthetic_phases']} of {record['phases']}",
            f"{record['added_seconds'] / record['build_seconds']:+.0%} of {record['build_seconds']:.0f} s",
            f"{statistics.median(differ):+.2%} ({max(differ, key=abs):+.2%})" if differ else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| program | phase | steps | points | unknown | trials | time, synthetic to real |", "|" + "---|" * 7]
    for record in records:
        for number, proof in enumerate(record["proofs"]):
            if not proof["refused"]:
                said = [str(proof[name]) for name in ("address_steps", "points", "unknown_steps", "trials")]
                time_said = f"{proof['time_ratio']:.3f} ± {proof['time_error']:.3f}"
                lines.append(f"| {_program(record)} | {number} | {' | '.join(said)} | {time_said} |")
    for record in records:
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in record["seconds"].items())
        lines += ["", f"{_program(record)}: {spent}"]
        lines += [f"  kept: {reason}" for reason in record["refused"]]
    return "\n".join(lines)


def _program(record: Record) -> str:
    return str(record["name"]).removeprefix("synthetic-")


if __name__ == "__main__":
    begun = time.monotonic()
    print(report(list(measure(sys.argv[2:] or list(WITH_DATA), Path(sys.argv[1]), 3, print))))
    print(f"{time.monotonic() - begun:.0f} s")
