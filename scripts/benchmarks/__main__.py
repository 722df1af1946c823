# SPDX-License-Identifier: Apache-2.0
"""Measure how well probes predict, and what they cost, on this machine. See scripts/bench."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Python puts the folder of this file first, whose programs.py would hide that of tests/support.
sys.path[0:1] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

from benchmarks import (  # noqa: E402
    counter_page,
    extras,
    many_nodes,
    mpi_scale,
    report,
    scale,
    simulations,
    slow_link,
    synthetic,
    warm_ups,
)
from benchmarks.accuracy import measurement as accuracy  # noqa: E402
from benchmarks.accuracy import report as accuracy_report  # noqa: E402
from benchmarks.arguments import read_arguments  # noqa: E402
from benchmarks.arrays import suite as arrays  # noqa: E402
from benchmarks.breadth import measurement as breadth  # noqa: E402
from benchmarks.breadth import programs as breadth_programs  # noqa: E402
from benchmarks.breadth import recorded as breadth_recorded  # noqa: E402
from benchmarks.breadth import report as breadth_report  # noqa: E402
from benchmarks.breadth import suite as breadth_suite  # noqa: E402
from benchmarks.emulated import measurement as emulated  # noqa: E402
from benchmarks.emulated import report as emulated_report  # noqa: E402
from benchmarks.emulation import measurement as emulations  # noqa: E402
from benchmarks.emulation import report as emulation_report  # noqa: E402
from benchmarks.exact import measurement as exact  # noqa: E402
from benchmarks.exact import report as exact_report  # noqa: E402
from benchmarks.hosts import suite as hosts  # noqa: E402
from benchmarks.inputs import make_inputs, make_programs, make_short_inputs  # noqa: E402
from benchmarks.measure import measure  # noqa: E402
from benchmarks.mpi import suite as mpi  # noqa: E402
from benchmarks.noise import measurement as noise  # noqa: E402
from benchmarks.noise import recorded as noise_recorded  # noqa: E402
from benchmarks.noise import report as noise_report  # noqa: E402
from benchmarks.programs import (  # noqa: E402
    ACCURACY,
    ACCURACY_QUICK,
    ARRAYS,
    EVERYTHING,
    EXACT_QUICK,
    EXACT_RECORDED,
    KNOWN,
    QUICK,
    SHORT,
    WITH_DATA,
    Benchmark,
)
from benchmarks.rootless import suite as rootless  # noqa: E402
from benchmarks.selection import measurement as selection  # noqa: E402
from benchmarks.selection import reconstruction  # noqa: E402
from benchmarks.threads import measurement as threads  # noqa: E402
from benchmarks.threads import programs as thread_programs  # noqa: E402
from benchmarks.threads import report as threads_report  # noqa: E402
from probe.signals import leave_as_commands_do  # noqa: E402

HERE = ROOT / "build" / "bench"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(names: list[str] | None, quick: bool) -> list[Benchmark]:
    return named(names if names else QUICK if quick else [b.name for b in EVERYTHING])


def named(wanted: Sequence[str]) -> list[Benchmark]:
    return [KNOWN[n] for n in wanted]


def one(benchmark: Benchmark, arguments: argparse.Namespace) -> dict[str, Any]:
    say(f"bench: {benchmark.name}")
    begun = time.monotonic()
    record = measure(
        benchmark, data=HERE / "data", folder=HERE, plain_runs=arguments.full_runs, repeats=arguments.repeat,
        patience=arguments.patience, keep=arguments.keep,
    )  # fmt: skip
    record["bench_seconds"] = time.monotonic() - begun
    save(record)
    return record


def save(record: dict[str, Any]) -> None:
    record["date"] = time.strftime("%Y-%m-%d")
    (HERE / f"{record['name']}.json").write_text(json.dumps(record, indent=1) + "\n")


def measure_accuracy(arguments: argparse.Namespace) -> None:
    """Measure what has no record yet, then the tables of all records there are."""
    names = arguments.programs or (ACCURACY_QUICK if arguments.quick else ACCURACY)
    benchmarks, folder = named(names), HERE / "accuracy"
    seeds = range(1, (min(arguments.seeds, 2) if arguments.quick else arguments.seeds) + 1)
    records = accuracy.load_all(folder, [b.name for b in benchmarks], seeds)
    native = {r["program"]: r["native"] for r in records if "native" in r}
    done = {(r["program"], r["seed"]) for r in records if "native" in r}
    missing = {b.name: [seed for seed in seeds if (b.name, seed) not in done] for b in benchmarks}
    seconds = accuracy.estimate(missing, native, arguments.baselines)
    pairs = sum(map(len, missing.values()))
    say(f"bench: {pairs} pairs of program and seed to measure, about {seconds / 60:.0f} minutes")
    if arguments.estimate:
        return
    if not arguments.report:
        make_inputs(HERE / "data", media=True, say=say)
        settings = accuracy.Settings(
            arguments.interval, arguments.repeat, arguments.patience, arguments.keep, arguments.baselines
        )
        for benchmark in benchmarks:
            for record in accuracy.measure_program(
                benchmark, seeds, settings, data=HERE / "data", folder=folder, say=say
            ):  # fmt: skip
                print(accuracy_report.line(record), flush=True)
    records = accuracy.load_all(folder, [b.name for b in benchmarks], seeds)
    print(accuracy_report.tables(records))
    if arguments.write:
        accuracy_report.write(ROOT / "docs" / "accuracy.md", records)


def measure_selection(arguments: argparse.Namespace) -> None:
    benchmarks = named(arguments.programs or selection.PROGRAMS)
    if not arguments.report:
        make_inputs(HERE / "data", media=False, say=say)
        seeds = range(1, arguments.seeds + 1)
        save(selection.measure(benchmarks, HERE / "selection", HERE / "data", seeds, say))
    if record := load("selection"):
        print(reconstruction.report(record))


def measure_scale(_: argparse.Namespace) -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    save(record := scale.measure(say))
    print(report.scale(record))


def measure_synthetic(arguments: argparse.Namespace) -> None:
    """Measure the array programs with their data and without, then the table of all records there are. With --there:
    predict by the probes that are left, on the emulated node."""
    names = arguments.only or (["stencil", "sorter"] if arguments.quick else list(WITH_DATA))
    if arguments.there:
        if not arguments.report:
            for record in synthetic.measure_there(names, HERE / "synthetic", arguments.clock, say):
                save(record)
        there = (load(synthetic.record_name(name, arguments.clock)) for name in names)
        print(synthetic.report_there([record for record in there if record]))
        return
    if not arguments.report:
        for record in synthetic.measure(names, HERE / "synthetic", arguments.full_runs, say):
            save(record)
    print(synthetic.report([record for name in names if (record := load(f"synthetic-{name}"))]))


def measure_simulations(arguments: argparse.Namespace) -> None:
    suite = simulations if arguments.what == "simulate" else mpi_scale
    HERE.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        save(suite.measure(say, quick=arguments.quick))
    if record := load(arguments.what):
        print(suite.report(record))


def measure_emulated(arguments: argparse.Namespace) -> None:
    """Predict and run in full, on the emulated node, all programs that have a probe; then the table of all records."""
    everything = [*dict.fromkeys([*ACCURACY, *(b.name for b in EVERYTHING)])]
    benchmarks = named(arguments.programs or (QUICK if arguments.quick else everything))
    if not arguments.report:
        for record in emulated.run(benchmarks, HERE, arguments.full_runs, arguments.clock, say):
            save(record)
            print(emulated_report.line(record), flush=True)
    records = [r for b in benchmarks if (r := load(f"{emulated.prefix(arguments.clock)}-{b.name}"))]
    print(emulated_report.tables(records))


def measure_many(arguments: argparse.Namespace) -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    save(many_nodes.run(arguments.rounds, say))
    print(report.many(load("many-nodes")))


def measure_link(arguments: argparse.Namespace) -> None:
    for name in arguments.programs or ("clustalw", "nbody"):
        save(record := slow_link.run(HERE / f"{name}.probe", arguments.repeat))
        print(report.link(record), flush=True)


def measure_decisions(arguments: argparse.Namespace) -> None:
    # The packages that decisions need are installed for `scripts/bench decisions` alone.
    from benchmarks import decisions

    found = {
        "store": decisions.store(HERE, 100_000 if arguments.quick else 1_000_000),
        "model": decisions.model(),
        "hook": decisions.hook(HERE),
    }
    for name, record in found.items():
        save({"name": f"decisions-{name}", **record})
    print(decisions.report(found))


def measure_exact(arguments: argparse.Namespace) -> None:
    """Measure what has no record of success yet, then the tables of all records there are."""
    default = EXACT_QUICK if arguments.quick else [b.name for b in SHORT]
    benchmarks = named(arguments.programs or default)

    def done(name: str) -> bool:
        return (record := load(name)) is not None and "failure" not in record

    if not arguments.report:
        make_inputs(HERE / "data", media=False, say=say)
        make_short_inputs(HERE / "data")
        (recorded,) = named([EXACT_RECORDED])
        for record in exact.run(benchmarks, recorded, HERE, arguments.patience, arguments.repeat, done, say):
            save(record)
    print(exact_report.report([exact.name_of(b) for b in benchmarks], load))


def measure_warm_ups(arguments: argparse.Namespace) -> None:
    make_inputs(HERE / "data", media=False, say=say)
    for record in warm_ups.run(
        chosen(arguments.programs, arguments.quick), HERE, arguments.interval, arguments.patience
    ):
        save(record)
        print(warm_ups.report([record]), flush=True)


def measure_programs(arguments: argparse.Namespace) -> None:
    """Measure the programs of docs/figures.md, then the tables of all records there are."""
    if not arguments.report:
        run(arguments)
    records = [r for b in chosen(arguments.programs, arguments.quick) if (r := load(b.name))]
    print(report.table(records))
    print()
    print(report.bars(records, load("install"), load("phases-60s"), load("counter-page")))


def load(name: str) -> dict[str, Any] | None:
    path = HERE / f"{name}.json"
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def run(arguments: argparse.Namespace) -> None:
    benchmarks = chosen(arguments.programs, arguments.quick)
    make_inputs(HERE / "data", media=False, say=say)
    for benchmark in benchmarks:
        print(report.table([one(benchmark, arguments)]), flush=True)
    if not arguments.programs:
        save(counter_page.compare())
        say("bench: 100,000 sites")
        save(extras.install_time(HERE))
        if not arguments.quick:
            say("bench: a program of a minute")
            save(extras.one_pass(HERE / "data", HERE, arguments.patience))


def measure_breadth(arguments: argparse.Namespace) -> None:
    """Try what has no row of this version yet, note the rows, and draw the page."""
    if not arguments.report:
        tool = breadth.Tool(commit=breadth.tool_commit())
        chosen = breadth_programs.named(arguments.only, arguments.aside)
        due = breadth_suite.due(chosen, tool.commit, arguments.again)
        for row in breadth_suite.go_through(due, HERE / "breadth", tool, say, minutes=arguments.limit):
            print(breadth_report.line(row), flush=True)
    rows = breadth_recorded.read_rows()
    print(breadth_report.tables(rows))
    if arguments.write or not arguments.report:
        breadth_report.write(ROOT / "docs" / "breadth.md", rows)


def measure_noise(arguments: argparse.Namespace) -> None:
    """Measure what has no record yet, quiet and beside a competitor, then the table of all records there are."""
    if not arguments.report:
        make_inputs(HERE / "data", media=True, say=say)
        make_short_inputs(HERE / "data")
        benchmarks = named(arguments.programs or [*ACCURACY, *(b.name for b in ARRAYS)])
        for record in noise.measure(
            benchmarks, noise.STATES, HERE / "noise", HERE / "data", interval=arguments.interval,
            full_runs=noise.FULL_RUNS, again=arguments.again, say=say,
        ):  # fmt: skip
            print(noise_report.line(record), flush=True)
    records = noise_recorded.load_all()
    print(noise_report.tables(records))
    if arguments.write:
        noise_report.write(ROOT / "docs" / "accuracy.md", records)


def measure_threads(arguments: argparse.Namespace) -> None:
    """Measure what has no row yet, then the table of all rows there are; or count restores."""
    folder = HERE / "threads"
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.restores:
        # What tests take regions with is needed here alone.
        from benchmarks.threads import restores

        for record in restores.measure(arguments.restores, folder, say):
            save({"name": f"threads-restores-{record['kind']}", **record})
        print(threads_report.restores([r for k in restores.KINDS if (r := load(f"threads-restores-{k}"))]))
        return
    names, seeds = arguments.only or list(thread_programs.NAMES), range(1, min(arguments.seeds, 3) + 1)
    widths = [arguments.width] if arguments.width else list(thread_programs.WIDTHS)
    missing = threads.due(names, widths, seeds, folder, arguments.again)
    seconds = accuracy.estimate(missing, {}, 0)
    say(f"bench: {sum(map(len, missing.values()))} rows to measure, about {seconds / 60:.0f} minutes")
    if arguments.estimate:
        return
    if not arguments.report:
        if thread_programs.need_inputs(names):
            make_inputs(HERE / "data", media=True, say=say)
        else:
            make_programs(HERE / "data")
        settings = accuracy.Settings(arguments.interval, arguments.repeat, arguments.patience, arguments.keep, 0)
        for record in threads.measure(
            names, widths, seeds, settings, data=HERE / "data", folder=folder, again=arguments.again, say=say
        ):  # fmt: skip
            print(threads_report.line(record), flush=True)
    records = threads.load_all(names, widths, seeds, folder)
    print(threads_report.tables(records))
    if arguments.write:
        threads_report.write(ROOT / "docs" / "accuracy.md", records)


def measure_emulations(arguments: argparse.Namespace) -> None:
    """Profile and emulate: the experiments that are named, or all that have no record yet; then all tables."""
    names = arguments.only or list(emulation_report.EXPERIMENTS)
    if not arguments.report:
        make_inputs(HERE / "data", media=True, say=say)
        make_short_inputs(HERE / "data")
        if arguments.again:
            shutil.rmtree(HERE / "there", ignore_errors=True)
        for name in names:
            earlier = load(f"emulation-{name}")
            if earlier is None or arguments.again or (earlier["quick"] and not arguments.quick):
                before = os.getloadavg()[0]
                rows = list(emulations.experiment(name, HERE, arguments.quick, say))
                save({"name": f"emulation-{name}", "load": before, "quick": arguments.quick, "rows": rows})
    found = {name: record for name in names if (record := load(f"emulation-{name}"))}
    print(emulation_report.tables(found))


SUITES: dict[str | None, Callable[[argparse.Namespace], None]] = {
    None: measure_programs,
    "accuracy": measure_accuracy,
    "arrays": arrays.run,
    "breadth": measure_breadth,
    "selection": measure_selection,
    "scale": measure_scale,
    "simulate": measure_simulations,
    "mpi-scale": measure_simulations,
    "nodes": measure_emulated,
    "many": measure_many,
    "link": measure_link,
    "decisions": measure_decisions,
    "exact": measure_exact,
    "emulation": measure_emulations,
    "hosts": lambda arguments: hosts.measure_all(arguments, ROOT / "docs" / "hosts.md", say),
    "mpi": lambda arguments: mpi.measure_all(arguments, HERE / "mpi", say),
    "noise": measure_noise,
    "rootless": rootless.run,
    "threads": measure_threads,
    "synthetic": measure_synthetic,
    "warmup": measure_warm_ups,
}
"""The words that arguments.SUITES explains, and what each measures."""


def main() -> None:
    arguments = read_arguments()
    leave_as_commands_do()
    SUITES[arguments.what](arguments)


if __name__ == "__main__":
    main()
