# SPDX-License-Identifier: Apache-2.0
"""Measure how well probes predict, and what they cost, on this machine. See scripts/bench."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import accuracy  # noqa: E402
import accuracy_report  # noqa: E402
import counter_page  # noqa: E402
import emulated  # noqa: E402
import exact  # noqa: E402
import extras  # noqa: E402
import many_nodes  # noqa: E402
import report  # noqa: E402
import scale  # noqa: E402
import slow_link  # noqa: E402
import warm_ups  # noqa: E402
from inputs import make_inputs  # noqa: E402
from measure import measure  # noqa: E402
from programs import (  # noqa: E402
    ACCURACY,
    ACCURACY_ONLY,
    ACCURACY_QUICK,
    EVERYTHING,
    PACKAGED,
    QUICK,
    QUICKSTART,
    Benchmark,
)

HERE = ROOT / "build" / "bench"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(names: str | None, quick: bool) -> list[Benchmark]:
    return named(names.split(",") if names else QUICK if quick else [b.name for b in EVERYTHING])


def named(wanted: Sequence[str]) -> list[Benchmark]:
    known = {b.name: b for b in (*EVERYTHING, *ACCURACY_ONLY)}
    if unknown := [n for n in wanted if n not in known]:
        sys.exit(f"bench: no program {unknown}; there are: {', '.join(known)}")
    return [known[n] for n in wanted]


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["accuracy", "scale", "nodes", "many", "link", "decisions", "exact", "warmup"],
        help="accuracy: over programs and seeds; scale: very large profiles; nodes: the probes made before, on the "
        "emulated node; many: eight nodes at once; link: over 1 Mbit/s; decisions: store, model and Slurm's hook; "
        "exact: the instruction-exact tracers; warmup: what each length of warm-up does to region times",
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds of `accuracy`")
    parser.add_argument(
        "--baselines", type=int, default=1, help="seeds of `accuracy` with random intervals restored, too"
    )
    parser.add_argument("--interval", type=float, default=0.02, help="seconds, of `accuracy` and `warmup`")
    parser.add_argument("--estimate", action="store_true", help="say how long `accuracy` would take, and leave")
    parser.add_argument("--write", action="store_true", help="write the tables of `accuracy` to docs/accuracy.md")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of `many`")
    parser.add_argument("--programs", help="names, parted by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="four programs, no program of a minute")
    parser.add_argument("--repeat", type=int, default=5, help="repeats of every phase in `probe run`")
    parser.add_argument("--full-runs", type=int, default=5, help="full runs to compare with")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--clock", choices=["", emulated.CLOCK], default="", help="what time the emulated node goes by")
    parser.add_argument("--keep", action="store_true", help="keep the work folders")
    parser.add_argument("--packages", action="store_true", help="print the packages the programs come in, and leave")
    parser.add_argument("--report", action="store_true", help="print the table of the records there are, and leave")
    arguments = parser.parse_args()
    if arguments.packages:
        everything = (QUICKSTART, *PACKAGED, *(ACCURACY_ONLY if arguments.what == "accuracy" else ()))
        print("\n".join(sorted({b.package for b in everything})))
        return
    if arguments.what == "accuracy":
        measure_accuracy(arguments)
        return
    if arguments.what == "decisions":
        # What it needs is installed for it alone: `scripts/bench decisions`.
        import decisions

        found = {
            "store": decisions.store(HERE, 100_000 if arguments.quick else 1_000_000),
            "model": decisions.model(),
            "hook": decisions.hook(HERE),
        }
        for name, record in found.items():
            save({"name": f"decisions-{name}", **record})
        print(decisions.report(found))
        return
    if arguments.what == "nodes":
        names = arguments.programs.split(",") if arguments.programs else [b.name for b in EVERYTHING]
        for record in emulated.run(names, HERE, arguments.full_runs, arguments.clock):
            save(record)
            print(report.emulated(record), flush=True)
        return
    if arguments.what == "link":
        for name in (arguments.programs or "clustalw,nbody").split(","):
            save(record := slow_link.run(HERE / f"{name}.probe", arguments.repeat))
            print(report.link(record), flush=True)
        return
    if arguments.what == "scale":
        HERE.mkdir(parents=True, exist_ok=True)
        save(record := scale.measure(say))
        print(report.scale(record))
        return
    if arguments.what == "many":
        HERE.mkdir(parents=True, exist_ok=True)
        save(many_nodes.run(arguments.rounds, say))
        print(report.many(load("many-nodes")))
        return
    if arguments.what == "exact":
        benchmarks = chosen(arguments.programs, arguments.quick)
        if not arguments.report:
            make_inputs(HERE / "data")
            for record in exact.run(benchmarks, HERE, arguments.patience, arguments.repeat):
                say(f"bench: {record['name']}")
                save(record)
        print(exact.report([b.name for b in benchmarks], load))
        return
    if arguments.what == "warmup":
        make_inputs(HERE / "data", media=False, say=say)
        for record in warm_ups.run(
            chosen(arguments.programs, arguments.quick), HERE, arguments.interval, arguments.patience
        ):
            save(record)
            print(warm_ups.report([record]), flush=True)
        return
    if not arguments.report:
        run(arguments)
    records = [r for b in chosen(arguments.programs, arguments.quick) if (r := load(b.name))]
    print(report.table(records))
    print()
    print(report.bars(records, load("install"), load("phases-60s"), load("counter-page")))


def measure_accuracy(arguments: argparse.Namespace) -> None:
    """Measure what has no record yet, then the tables of all records there are."""
    names = arguments.programs.split(",") if arguments.programs else ACCURACY_QUICK if arguments.quick else ACCURACY
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


if __name__ == "__main__":
    main()
