# SPDX-License-Identifier: Apache-2.0
"""The instruction-exact tracers: their collector, the Valgrind tool's cost, and probes of both kinds of trace compared.

Costs are CPU seconds, our tool and exp-bbv by turns, with intervals of the same length. Each part leaves a record as
soon as it is done, and is not measured again.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.disturbance import wait_until_quiet, watched
from benchmarks.measure import environment, probe_command
from benchmarks.programs import Benchmark, resolved
from checkpoint.process.plain_run import run_plain
from checkpoint.process.program import Program, Streams, resolve_program
from probe.formats.arrays import IntArray
from probe.formats.timing import load_timing
from probe.node.measuring import away_from, measuring_cpu
from probe.tracers import valgrind
from probe.tracers.stream import Recorded

ROOT = Path(__file__).parents[3]
COLLECTOR = ROOT / "pintools" / "collector"
COLLECTOR_RECORD = "exact-collector"

LONG_RUN = 10**13
"""Instructions of the run that the collector is given from memory."""

TURNS, TURNS_SECONDS = 3, 20.0
"""Turns of native run, our tool and exp-bbv; no further one is begun after so many seconds."""

INTERVAL_SECONDS = 0.02
"""Of the native trace; the exact one's intervals have as many instructions as take this long, in whole millions."""

LONGEST_INTERVAL, SHORTEST_INTERVAL = 100_000_000, 1_000_000

_SAID = 400
_MOMENTS = 2000
"""Moments of the run at which the phases of both traces are compared."""

_BLOCK = np.dtype([("image", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("instructions", "<u4")])
_ENTRY = np.dtype([("block", "<u4"), ("executions", "<u8")])

Record = dict[str, Any]
Phases = IntArray


def name_of(benchmark: Benchmark) -> str:
    """The name of the program's record."""
    return f"exact-{benchmark.name}"


def run(
    benchmarks: Sequence[Benchmark], recorded: Benchmark, folder: Path, patience: float, repeats: int,
    done: Callable[[str], bool], say: Callable[[str], None],
) -> Iterator[Record]:  # fmt: skip
    """The records that are not `done` yet, as they are made. `folder` holds the programs' inputs below data/, and takes
    what is built. The run of `recorded` is what the collector is given."""
    if not done(COLLECTOR_RECORD):
        say(f"bench: {COLLECTOR_RECORD}, recorded from {recorded.name}")
        yield collector(recorded, folder, patience)
    for benchmark in benchmarks:
        if not benchmark.expected_refusal and not done(name_of(benchmark)):
            say(f"bench: {name_of(benchmark)}")
            begun = time.monotonic()
            record = compared(benchmark, folder, patience, repeats)
            yield record | {"bench_seconds": time.monotonic() - begun}


# -- the collector


def collector(benchmark: Benchmark, folder: Path, patience: float) -> Record:
    """Events per second from memory; memory and stream of a run of LONG_RUN instructions: the intervals that the
    Valgrind tool recorded of a program, over and over."""
    source = Path(__file__).with_name("feed_collector.c")
    record: Record = {"name": COLLECTOR_RECORD, "recorded_from": list(resolved(benchmark))}
    with tempfile.TemporaryDirectory(dir=folder) as made:
        program, recording = Path(made) / "feed_collector", Path(made) / "recording"
        options = ["-O2", f"-I{COLLECTOR}", "-o", str(program), str(source), str(COLLECTOR / "collector.c")]
        subprocess.run(["cc", *options], check=True)

        def output(*arguments: str) -> list[str]:
            return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.split()

        streams = Streams(Path(made) / "stdout", Path(made) / "stderr")
        recorded, _ = valgrind.record(program_of(benchmark, folder), interval=LONGEST_INTERVAL, streams=streams)
        write_recording(recorded, recording)
        record["quiet"] = wait_until_quiet(patience)
        with watched() as load:
            record["events_per_second"] = 1e9 / min(float(output()[0]) for _ in range(5))
        record["load"] = load.to_json()
        begun = time.monotonic()
        beginning, tenth, end, instructions, written, passes = map(int, output(str(recording), str(LONG_RUN)))
    return record | {
        "long_run_seconds": time.monotonic() - begun,
        "blocks": len(recorded.image),
        "intervals_recorded": len(recorded.lengths),
        "passes": passes,
        "instructions": instructions,
        "kilobytes_at_the_beginning": beginning,
        "kilobytes_after_a_tenth": tenth,
        "kilobytes_at_the_end": end,
        "bytes_written": written,
    }


def write_recording(recorded: Recorded, target: Path) -> None:
    """What feed_collector.c reads: every block, and the executions of each interval."""
    blocks = np.zeros(len(recorded.image), _BLOCK)
    blocks["image"] = recorded.image + 1
    for name in ("offset", "size", "instructions"):
        blocks[name] = getattr(recorded, name)
    counts = recorded.counts
    with target.open("wb") as file:
        file.write(np.array(counts.shape[::-1], "<u4").tobytes() + blocks.tobytes())
        for begin, end in zip(counts.indptr, counts.indptr[1:], strict=False):
            entries = np.zeros(end - begin, _ENTRY)
            entries["block"], entries["executions"] = counts.indices[begin:end], counts.data[begin:end]
            file.write(np.uint32(len(entries)).astype("<u4").tobytes() + entries.tobytes())


# -- programs


def program_of(benchmark: Benchmark, folder: Path) -> Program:
    """The program in the folder with its inputs."""
    data = folder / "data"
    return resolve_program(
        resolved(benchmark), stdin=str(data / benchmark.stdin), cwd=str(data), env=environment(benchmark)
    )


def compared(benchmark: Benchmark, folder: Path, patience: float, repeats: int) -> Record:
    """What tracing one program costs, and what probes of a native and of an exact trace predict for this machine."""
    record: Record = {"name": name_of(benchmark), "program": list(resolved(benchmark))}
    try:
        record["quiet"] = wait_until_quiet(patience)
        with watched() as load:
            record["cost"] = cost(benchmark, folder)
        record["cost_load"] = load.to_json()
        rate = record["cost"]["instructions"] / record["cost"]["native"]
        millions = round(INTERVAL_SECONDS * rate / 1e6)
        record["interval"] = min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, millions * 10**6))
        exact = ["--tracer", "valgrind", "--interval", f"{record['interval'] // 10**6}M"]
        with tempfile.TemporaryDirectory(dir=folder) as made:
            for kind, options in (("native", ["--interval", f"{INTERVAL_SECONDS}s"]), ("exact", exact)):
                record[f"{kind}_quiet"] = wait_until_quiet(patience)
                with watched() as load:
                    record[kind] = predicted(benchmark, folder / "data", Path(made) / kind, repeats, options)
                record[f"{kind}_load"] = load.to_json()
            record["same_phases"] = same_phases(*(phases_over_time(Path(made) / kind) for kind in ("native", "exact")))
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    return record


def cost(benchmark: Benchmark, folder: Path) -> Record:
    """CPU seconds of the program natively, under our tool and under exp-bbv: medians of some turns."""
    program = program_of(benchmark, folder)
    cpu = measuring_cpu()
    native, ours, theirs, instructions = [], [], [], 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as made, away_from(cpu):
        for turn in range(TURNS):
            if turn and time.monotonic() - begun > TURNS_SECONDS:
                break
            streams = Streams(Path(made) / f"{turn}.stdout", Path(made) / f"{turn}.stderr")
            native.append(_sound(run_plain(program, streams, cpu=cpu)).cpu)
            recorded, traced = valgrind.record(program, interval=LONGEST_INTERVAL, streams=streams, cpu=cpu)
            ours.append(traced.cpu)
            instructions = int(recorded.lengths.sum())
            theirs.append(_sound(run_plain(_under_exp_bbv(program, Path(made)), streams, cpu=cpu)).cpu)
            for path in Path(made).iterdir():
                path.unlink()
    return {
        "turns": len(native),
        "native": statistics.median(native),
        "valgrind": statistics.median(ours),
        "exp_bbv": statistics.median(theirs),
        "instructions": instructions,
    }


def _sound(run: Any) -> Any:
    if run.status:
        raise ValueError(f"a run ended with status {run.status}")
    return run


def _under_exp_bbv(program: Program, folder: Path) -> Program:
    installation = valgrind.find_valgrind()
    options = [
        "--command-line-only=yes", "--tool=exp-bbv", f"--log-file={folder / 'log'}", "--vgdb=no",
        f"--interval-size={LONGEST_INTERVAL}", f"--bb-out-file={folder / 'bb'}", f"--pc-out-file={folder / 'pc'}", "--",
    ]  # fmt: skip
    argv = ("valgrind", *options, program.executable, *program.argv[1:])
    return replace(program, executable=installation.command, argv=argv)


def predicted(benchmark: Benchmark, data: Path, work: Path, repeats: int, options: list[str]) -> Record:
    """A probe built with `options` in the folder `work`, run here: its prediction, and what it says of its selection
    and markers. Trace, timing run and selection stay in `work`."""
    target = f"{work}.probe"
    arguments = ["-q", "-o", target, "--work", str(work), "--stdin", benchmark.stdin, *options]
    begun = time.monotonic()
    _output(benchmark, data, "build", *arguments, "--", *resolved(benchmark))
    built = time.monotonic() - begun
    shown = json.loads(_output(benchmark, data, "show", "--json", target))
    result = json.loads(_output(benchmark, data, "run", "-q", "--json", "--repeat", str(repeats), target))
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)  # checkpoints, of a gigabyte or more
    os.unlink(target)  # noqa: PTH108
    return {
        "build_seconds": built,
        "seconds": result["prediction"]["seconds"],
        "et_ref": shown["et_ref_seconds"],
        "phases": len(shown["phases"]),
        "intervals": shown["intervals"],
        "selection_error": shown["errors"]["selection"],
        "selection_held_out": shown["errors"]["selection_held_out"],
        "boundaries": shown["boundaries"],
        "tracing": shown["tracing_overhead"],
        "warnings": [*shown["warnings"], *result["warnings"]],
    }


def phases_over_time(work: Path) -> Phases:
    """The phase at each of _MOMENTS moments of the timing run, equally far apart."""
    seconds = load_timing(work / "timing.npz").seconds
    labels = np.asarray(json.loads((work / "selection.json").read_text())["labels"])
    ends = np.cumsum(seconds)
    moments = (np.arange(_MOMENTS) + 0.5) / _MOMENTS * ends[-1]
    return labels[np.minimum(np.searchsorted(ends, moments), len(labels) - 1)]


def same_phases(one: Phases, other: Phases) -> float:
    """The share of the moments at which the finer division's phase tells the other's: the one it mostly comes with."""
    told, telling = sorted((one, other), key=lambda phases: len(np.unique(phases)))
    agreeing = sum(int(np.bincount(told[telling == phase] + 1).max()) for phase in np.unique(telling))
    return agreeing / len(told)


def _output(benchmark: Benchmark, data: Path, *arguments: str) -> str:
    status, out, said = probe_command(benchmark, data, *arguments)
    if status:
        raise ValueError(f"{arguments[0]}: exit status {status}: {said[-_SAID:]}")
    return out
