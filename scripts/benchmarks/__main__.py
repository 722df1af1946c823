# SPDX-License-Identifier: Apache-2.0
"""Measure how well probes predict, and what they cost, on this machine. See scripts/bench."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import counter_page  # noqa: E402
import emulated  # noqa: E402
import extras  # noqa: E402
import many_nodes  # noqa: E402
import report  # noqa: E402
import slow_link  # noqa: E402
from measure import measure  # noqa: E402
from programs import EVERYTHING, OWN, PACKAGED, QUICK, QUICKSTART, Benchmark  # noqa: E402

HERE = ROOT / "build" / "bench"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(names: str | None, quick: bool) -> list[Benchmark]:
    wanted = names.split(",") if names else list(QUICK) if quick else [b.name for b in EVERYTHING]
    known = {b.name: b for b in EVERYTHING}
    if unknown := [n for n in wanted if n not in known]:
        sys.exit(f"bench: no program {unknown}; there are: {', '.join(known)}")
    return [known[n] for n in wanted]


def make_inputs(data: Path) -> None:
    """Programs by make, inputs by their scripts; nothing is made twice."""
    subprocess.run(["make", "-s", "-C", str(OWN.parent)], check=True)
    data.mkdir(parents=True, exist_ok=True)
    for maker, finished in (("make_bench_data.py", "source.i"), ("make_hmmer_data.py", "families.hmm")):
        script = ROOT / "data" / maker
        stamp = data / f".{maker}.made"
        if stamp.exists() and stamp.stat().st_mtime >= script.stat().st_mtime and (data / finished).exists():
            continue
        say(f"bench: making inputs with {maker}")
        subprocess.run([sys.executable, str(script), str(data)], check=True)
        if maker == "make_hmmer_data.py":
            command = ["hmmbuild", "--cpu", "0", "--amino", "-o", os.devnull, "families.hmm", "families.sto"]
            subprocess.run(command, cwd=data, check=True)
        stamp.touch()


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
        choices=["nodes", "many", "link", "decisions"],
        help="nodes: the probes made before, on the emulated node; many: eight nodes at once; link: over 1 Mbit/s; "
        "decisions: store, model and Slurm's hook",
    )
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
        print("\n".join(sorted({b.package for b in (QUICKSTART, *PACKAGED)})))
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
    if arguments.what == "many":
        HERE.mkdir(parents=True, exist_ok=True)
        save(many_nodes.run(arguments.rounds, say))
        print(report.many(load("many-nodes")))
        return
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
    make_inputs(HERE / "data")
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
