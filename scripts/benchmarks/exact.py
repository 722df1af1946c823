# SPDX-License-Identifier: Apache-2.0
"""The instruction-exact tracers: their collector, the Valgrind tool's cost, and probes of both kinds of trace compared.

Costs are CPU seconds of one run each, our tool and exp-bbv by turns, with intervals of the same length.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from disturbance import wait_until_quiet, watched
from measure import environment, probe_command
from programs import Benchmark, resolved

from checkpoint.plain import run_plain
from checkpoint.program import Program, Streams, resolve_program
from probe.node.measuring import away_from, measuring_cpu
from probe.tracers import valgrind

ROOT = Path(__file__).parents[2]
COLLECTOR = ROOT / "pintools" / "collector"
LONG_INTERVALS, LONG_ENTRIES = 100_000, 2000
"""A run of 10^13 instructions in intervals of 100 million, each with so many different blocks."""

TURNS = 3
INTERVALS = 400
LONGEST_INTERVAL, SHORTEST_INTERVAL = 100_000_000, 1_000_000
"""The thesis's length, or a shorter one where the run would have fewer than INTERVALS of it."""

NATIVE_BAR, EXP_BBV_BAR, EVENTS_BAR = 8.0, 1.5, 200e6
SAME_MEDIAN_BAR, SAME_WORST_BAR = 0.01, 0.03
_SAID = 400

Record = dict[str, Any]


def run(benchmarks: Sequence[Benchmark], folder: Path, patience: float, repeats: int) -> Iterator[Record]:
    """The records, as they are made; `folder` holds the programs' inputs below data/, and takes what is built."""
    yield collector(folder)
    for benchmark in benchmarks:
        if not benchmark.expected_refusal:
            yield compared(benchmark, folder, patience, repeats)


def collector(folder: Path) -> Record:
    """Events per second from memory, and the memory and stream of a run of 10^13 instructions."""
    source = Path(__file__).with_name("feed_collector.c")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        program = Path(made) / "feed_collector"
        options = ["-O2", f"-I{COLLECTOR}", "-o", str(program), str(source), str(COLLECTOR / "collector.c")]
        subprocess.run(["cc", *options], check=True)

        def output(*arguments: str) -> list[str]:
            return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.split()

        nanoseconds = min(float(output()[0]) for _ in range(5))
        _, tenth, end, instructions, written = map(int, output(str(LONG_ENTRIES), str(LONG_INTERVALS)))
    return {
        "name": "exact-collector",
        "events_per_second": 1e9 / nanoseconds,
        "instructions": instructions,
        "kilobytes_after_a_tenth": tenth,
        "kilobytes_at_the_end": end,
        "bytes_written": written,
    }


def compared(benchmark: Benchmark, folder: Path, patience: float, repeats: int) -> Record:
    """What tracing one program costs, and what probes of a native and of an exact trace predict for this machine."""
    record: Record = {"name": f"exact-{benchmark.name}", "program": list(resolved(benchmark))}
    try:
        record["quiet"] = wait_until_quiet(patience)
        with watched() as load:
            record["cost"] = cost(benchmark, folder)
        record["cost_load"] = load.to_json()
        length = record["cost"]["instructions"] // INTERVALS
        record["interval"] = min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, length // 10**6 * 10**6))
        exact = ["--tracer", "valgrind", "--interval", f"{record['interval'] // 10**6}M"]
        for kind, options in (("native", []), ("exact", exact)):
            record[f"{kind}_quiet"] = wait_until_quiet(patience)
            with watched() as load:
                record[kind] = predicted(benchmark, folder, repeats, options)
            record[f"{kind}_load"] = load.to_json()
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        record["failure"] = f"{type(error).__name__}: {error}"
    return record


def cost(benchmark: Benchmark, folder: Path) -> Record:
    """CPU seconds of the program natively, under our tool and under exp-bbv: medians of some turns."""
    data = folder / "data"
    program = resolve_program(
        resolved(benchmark), stdin=str(data / benchmark.stdin), cwd=str(data), env=environment(benchmark)
    )
    cpu = measuring_cpu()
    native, ours, theirs, instructions = [], [], [], 0
    with tempfile.TemporaryDirectory(dir=folder) as made, away_from(cpu):
        for turn in range(TURNS):
            streams = Streams(Path(made) / f"{turn}.stdout", Path(made) / f"{turn}.stderr")
            native.append(_sound(run_plain(program, streams, cpu=cpu)).cpu)
            recorded, traced = valgrind.record(program, interval=LONGEST_INTERVAL, streams=streams, cpu=cpu)
            ours.append(traced.cpu)
            instructions = int(recorded.lengths.sum())
            theirs.append(_sound(run_plain(_under_exp_bbv(program, Path(made)), streams, cpu=cpu)).cpu)
            for path in Path(made).iterdir():
                path.unlink()
    return {
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


def predicted(benchmark: Benchmark, folder: Path, repeats: int, options: list[str]) -> Record:
    """A probe built with `options`, run here: its prediction, and what it says of its selection and markers."""
    data = folder / "data"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        target = os.path.join(made, f"{benchmark.name}.probe")  # noqa: PTH118
        arguments = ["-q", "-o", target, "--stdin", benchmark.stdin, *options, "--", *resolved(benchmark)]
        _output(benchmark, data, "build", *arguments)
        shown = json.loads(_output(benchmark, data, "show", "--json", target))
        result = json.loads(_output(benchmark, data, "run", "-q", "--json", "--repeat", str(repeats), target))
    return {
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


def _output(benchmark: Benchmark, data: Path, *arguments: str) -> str:
    status, out, said = probe_command(benchmark, data, *arguments)
    if status:
        raise ValueError(f"{arguments[0]}: exit status {status}: {said[-_SAID:]}")
    return out


# -- report


def difference(record: Record) -> float:
    """How far the two probes' predictions are apart, each against its own ET_ref: the machine may have drifted."""
    exact, native = (record[kind]["seconds"] / record[kind]["et_ref"] for kind in ("exact", "native"))
    return float(exact / native - 1)


def report(names: Sequence[str], load: Callable[[str], Record | None]) -> str:
    """What docs/figures.md shows, from the records there are."""
    lines = []
    if record := load("exact-collector"):
        lines += [
            f"collector: {record['events_per_second'] / 1e6:.0f} million block events per second from memory "
            f"({_met(record['events_per_second'] >= EVENTS_BAR)})",
            f"{record['instructions']:.3g} instructions: {record['kilobytes_after_a_tenth']} kB after a tenth, "
            f"{record['kilobytes_at_the_end']} kB at the end, {record['bytes_written'] / 1e6:.0f} MB written "
            f"({_met(record['kilobytes_at_the_end'] <= record['kilobytes_after_a_tenth'])})",
        ]
    lines += [
        "",
        "| program | native s | Valgrind/native | exp-bbv/ours | intervals | selection native, exact | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    whole = [r for name in names if (r := load(f"exact-{name}"))]
    lines += [_row(record) for record in whole]
    costs = [r["cost"] for r in whole if "cost" in r]
    if costs:
        slower = statistics.median(c["valgrind"] / c["native"] for c in costs)
        faster = min(c["exp_bbv"] / c["valgrind"] for c in costs)
        lines += [
            "",
            f"Valgrind tool: {slower:.1f}x native in the median ({_met(slower <= NATIVE_BAR)}), at least {faster:.2f}x "
            f"faster than exp-bbv ({_met(faster >= EXP_BBV_BAR)})",
        ]
    apart = [abs(difference(r)) for r in whole if "exact" in r]
    if apart:
        median, worst = statistics.median(apart), max(apart)
        lines.append(
            f"native against exact: {100 * median:.2f} % in the median ({_met(median <= SAME_MEDIAN_BAR)}), "
            f"{100 * worst:.2f} % at worst ({_met(worst <= SAME_WORST_BAR)})"
        )
    return "\n".join(lines)


def _row(record: Record) -> str:
    name = record["name"].removeprefix("exact-")
    if "cost" not in record:
        return f"| {name} | {record['failure'][:100]} | | | | | |"
    c = record["cost"]
    cells = [name, f"{c['native']:.2f}", f"{c['valgrind'] / c['native']:.1f}", f"{c['exp_bbv'] / c['valgrind']:.2f}"]
    if "exact" not in record:
        return f"| {' | '.join(cells)} | {record['failure'][:100]} | | |"
    errors = ", ".join(f"{100 * record[kind]['selection_error']:+.2f} %" for kind in ("native", "exact"))
    cells += [f"{record['native']['intervals']}, {record['exact']['intervals']}", errors]
    return f"| {' | '.join(cells)} | {100 * difference(record):+.2f} % |"


def _met(reached: bool) -> str:
    return "met" if reached else "MISSED"
