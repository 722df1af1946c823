# SPDX-License-Identifier: Apache-2.0
"""One program: build a probe, run it, run the program in full right after, compare.

Everything goes through the `probe` command, as a user would do it; the plain runs use the same processor.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.disturbance import wait_until_quiet, watched
from benchmarks.programs import Benchmark, resolved
from benchmarks.selection.random_choice import random_error
from checkpoint.linux import PAGE_SIZE
from checkpoint.process.plain_run import PlainRun, run_plain
from checkpoint.process.program import Streams, resolve_program
from probe.formats.profile import load_profile
from probe.formats.timing import load_timing
from probe.node.measuring import away_from, measuring_cpu

COMMAND_SECONDS = 3600
ROOT = Path(__file__).parents[2]
REFUSED = 1000
"""Letters of a message that a record keeps."""
_PATH = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'scripts')!r}]\n"
_PROBE = "\nfrom probe.cli.main import main; main()"


def environment(benchmark: Benchmark) -> dict[str, str]:
    """The same for every run of the program, and nothing of ours in it."""
    kept = {k: os.environ[k] for k in ("PATH", "HOME", "PROBE_HOME") if k in os.environ}
    return {**kept, "LC_ALL": "C", **benchmark.environment}


def probe_command(
    benchmark: Benchmark, data: Path, *arguments: str, before: str = "", seconds: float = COMMAND_SECONDS
) -> tuple[int, str, str]:
    """Run `probe ARGUMENTS`; its exit status, output and messages. `before`: what its Python executes first. `seconds`:
    that it may take."""
    command = [sys.executable, "-c", _PATH + before + _PROBE, *arguments]
    done = subprocess.run(
        command, cwd=data, env=environment(benchmark), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=seconds,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr.strip()


def measure(
    benchmark: Benchmark, *, data: Path, folder: Path, plain_runs: int, repeats: int, patience: float, keep: bool
) -> dict[str, Any]:
    """The record of one program. `plain_runs` 0: no comparison with full runs."""
    record: dict[str, Any] = {"name": benchmark.name, "kind": benchmark.kind, "package": benchmark.package}
    record["load_before"] = os.getloadavg()[0]
    target, work = folder / f"{benchmark.name}.probe", folder / f"{benchmark.name}.work"
    shutil.rmtree(work, ignore_errors=True)
    target.unlink(missing_ok=True)
    try:
        argv = resolved(benchmark)
        record["program"] = list(argv)
        record["quiet"] = wait_until_quiet(patience)
        with watched() as load:
            failed = _build(record, benchmark, argv, data, target, work)
        record["build_load"] = load.to_json()
        if not failed:
            _run_and_compare(record, benchmark, argv, data, target, plain_runs, repeats, patience)
            _from_work_folder(record, work)
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
    return record


def _build(
    record: dict[str, Any], benchmark: Benchmark, argv: Sequence[str], data: Path, target: Path, work: Path
) -> bool:
    begun = time.monotonic()
    status, _, said = probe_command(
        benchmark, data, "build", "-q", "-o", str(target), "--work", str(work), "--stdin", benchmark.stdin, "--", *argv
    )
    record["build_seconds"] = time.monotonic() - begun
    if not status:
        return False
    key = "refused" if benchmark.expected_refusal else "failure"
    record[key] = f"build: exit status {status}: {said[-REFUSED:]}"
    return True


def _run_and_compare(
    record: dict[str, Any], benchmark: Benchmark, argv: Sequence[str], data: Path, target: Path, plain_runs: int,
    repeats: int, patience: float,
) -> None:  # fmt: skip
    status, out, said = probe_command(benchmark, data, "show", "--json", str(target))
    if status:
        raise ValueError(f"show: exit status {status}: {said[-REFUSED:]}")
    record["show"] = json.loads(out)
    record["run_quiet"] = wait_until_quiet(patience)
    with watched() as load:
        status, out, said = probe_command(
            benchmark, data, "run", "-q", "--json", "--repeat", str(repeats), str(target)
        )  # fmt: skip
    record["run_load"] = load.to_json()
    if status:
        raise ValueError(f"run: exit status {status}: {said[-REFUSED:]}")
    record["run"] = json.loads(out)
    # Once more with CRIU, for what restoring costs; how long regions take in both ways, the self-check has measured.
    status, out, said = probe_command(
        benchmark, data, "run", "-q", "--json", "--restorer", "criu", "--repeat", "1", str(target)
    )  # fmt: skip
    record["run_criu"] = json.loads(out) if not status else {"phases": [], "failure": said[-REFUSED:]}
    record["plain_quiet"] = wait_until_quiet(patience) if plain_runs else True
    with watched() as load:
        runs = full_runs(benchmark, argv, data, target.parent, plain_runs)
    record["plain_load"] = load.to_json()
    record["plain"] = [vars(r) for r in runs]
    record["figures"] = figures(record["show"], record["run"], runs)
    record["figures"]["direct"] = direct_against_criu(record["show"], record["run"], record["run_criu"])


def full_runs(benchmark: Benchmark, argv: Sequence[str], data: Path, folder: Path, count: int) -> list[PlainRun]:
    """Full runs, on the processor that probes measure on. Raises ValueError where one fails."""
    stdin = str(data / benchmark.stdin)
    program = resolve_program(argv, stdin=stdin, cwd=str(data), env=environment(benchmark))
    program = replace(program, threads=benchmark.threads)
    cpu = measuring_cpu()
    runs = []
    with away_from(cpu):
        for _ in range(count):
            streams = Streams(folder / "plain.stdout", folder / "plain.stderr")
            runs.append(run_plain(program, streams, cpu=cpu))
            streams.stdout.unlink()
            streams.stderr.unlink()
    if any(r.status for r in runs):
        raise ValueError(f"a plain run ended with status {[r.status for r in runs]}")
    return runs


def figures(show: dict[str, Any], run: dict[str, Any], plain: Sequence[PlainRun]) -> dict[str, Any]:
    """What the table shows. Errors are relative to the median plain run by the probe's clock; times in seconds."""
    clock = show["clock"]
    regions = [{k: statistics.median(r[k] for r in p["repeats"]) for k in ("wall", "warm", "restore")}
               for p in run["phases"] if p["repeats"]]  # fmt: skip
    alone = sum(r["wall"] for r in regions)
    restores = [abs(p["restore_error"]) for p in show["phases"] if p["restore_error"] is not None]
    found: dict[str, Any] = {
        "clock": clock,
        "phases": len(show["phases"]),
        "largest_weight": largest_stratum(show, "weight"),
        "largest_time_share": largest_stratum(show, "time_share"),
        "coverage": show["coverage"],
        "selection_error": show["errors"]["selection"],
        "selection_held_out": show["errors"]["selection_held_out"],
        "restore_error_median": statistics.median(restores) if restores else None,
        "restore_error_worst": max(restores, default=None),
        "tracing": show["tracing_overhead"],
        "validation": show["noise"],
        "boundaries": show["boundaries"],
        "sites": show["sites"],
        "own_environment": (show["et_plain_environment_seconds"] or math.nan) / show["et_ref_seconds"],
        "size_bytes": show["size_bytes"],
        "regions_seconds": alone,
        "one_pass_seconds": alone + sum(r["warm"] + r["restore"] for r in regions),
        "warnings": [*show["warnings"], *run["warnings"]],
    }
    if plain:
        times = [r.cpu if clock == "cpu" else r.wall for r in plain]
        native = statistics.median(times)
        predicted = run["prediction"]
        found |= {
            "native": native,
            "native_wall": statistics.median(r.wall for r in plain),
            "native_cpu": statistics.median(r.cpu for r in plain),
            "native_spread": (max(times) - min(times)) / native,
            "errors": {name: value / native - 1 for name, value in run["estimators"].items() if value is not None},
            "reach": predicted["high"] / predicted["seconds"] - 1,
            "held": predicted["low"] <= native <= predicted["high"],
            "reference_drift": show["et_ref_seconds"] / native - 1,
        }
    return found


def largest_stratum(show: dict[str, Any], share: str) -> float:
    """The largest `share` (weight or time_share) of a stratum, all its parts together; 0 without any."""
    found: dict[tuple[str, int], float] = {}
    for p in show["phases"]:
        key = ("phase", p["id"]) if p.get("stratum") is None else ("stratum", p["stratum"])
        found[key] = found.get(key, 0.0) + p[share]
    return max(found.values(), default=0.0)


def direct_against_criu(show: dict[str, Any], run: dict[str, Any], by_criu: dict[str, Any]) -> dict[str, Any]:
    """The direct restorer beside CRIU: region times (of the self-check, made by turns), restore times in seconds."""
    ok = [p for p in show["phases"] if p["status"] == "ok"]
    ratios = [p["t_ref_direct"] / p["t_ref"] - 1 for p in ok if p["t_ref_direct"] and not p["only_criu"]]
    criu = {p["id"]: p["repeats"][0]["restore"] for p in by_criu["phases"] if p["repeats"]}
    kept = {p["id"]: p["pages"]["kept"] * PAGE_SIZE for p in ok}
    taken = {
        p["id"]: statistics.median(r["restore"] for r in p["repeats"])
        for p in run["phases"] if p["repeats"] and p["restorer"] == "direct"
    }  # fmt: skip
    return {
        "phases": len(ok),
        "possible": sum(1 for p in ok if not p["only_criu"]),
        "refused": sorted({p["only_criu"] for p in ok if p["only_criu"]}),
        "region_errors": ratios,
        "restore_over_bar": sum(1 for i, s in taken.items() if s > 0.020 + 0.001 * kept[i] / 2e6),
        "slower_than_criu": sum(1 for i, s in taken.items() if i in criu and s > criu[i]),
        "restore_median": statistics.median(taken.values()) if taken else None,
        "restore_median_criu": statistics.median(criu.values()) if criu else None,
    }


def _from_work_folder(record: dict[str, Any], work: Path) -> None:
    """What only the work folder knows: the time of every interval."""
    timed, profile = load_timing(work / "timing.npz"), load_profile(work / "profile.npz")
    seconds = timed.cpu if record["figures"]["clock"] == "cpu" else timed.seconds
    instructions = timed.counts @ profile.blocks.instructions.astype(float)
    record["figures"]["random_error"] = random_error(seconds, instructions, record["figures"]["phases"])
    record["intervals"] = {
        "seconds": [round(float(v), 7) for v in seconds],
        "instructions": [float(v) for v in instructions],
    }
