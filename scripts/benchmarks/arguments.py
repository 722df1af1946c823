# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/bench.

Run as a program (`python3 -m benchmarks.arguments` in scripts/) it prints the distribution packages that a command line
needs; after a wrong option or --help it says what argparse says. It needs nothing that scripts/install
brings: nothing is installed for a command line that is wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.arrays.programs import KERNELS
from benchmarks.breadth import programs as breadth
from benchmarks.mpi import programs as mpi
from benchmarks.programs import ACCURACY_ONLY, KNOWN, PACKAGED, QUICKSTART, WITH_DATA
from benchmarks.rootless import programs as rootless
from benchmarks.threads import programs as threads

CLOCK = "instructions"
"""Value of CLOCK (scripts/testnode) for a node whose time goes by instructions."""

EXPERIMENTS = ("E.1", "E.2", "E.3", "E.4", "E.5", "start", "there")
"""Of `emulation`: those of the Synapse paper, the emulator's start-up, and `auto` on the emulated node."""

SUITES = {
    "accuracy": "over programs and seeds",
    "arrays": "array kernels of one to three loop nests: refusals, counted share, errors",
    "breadth": "packaged programs of many kinds, as a new user tries them",
    "selection": "ways to select, judged on recorded runs",
    "scale": "very large profiles",
    "simulate": "networks of up to 32,768 nodes, and replay beside SimGrid alone",
    "mpi-scale": "made-up recordings of 1,024 and 8,192 MPI ranks, simulated",
    "nodes": "the probes made before, on the emulated node",
    "many": "eight nodes at once",
    "link": "over 1 Mbit/s",
    "decisions": "store, model and Slurm's hook",
    "exact": "the instruction-exact tracers",
    "emulation": "resource profiles and emulations, as in the Synapse paper",
    "hosts": "the kept probes against full runs on this processor",
    "mpi": "programs of two ranks: recorded, each rank alone, the whole predicted",
    "noise": "quiet, and beside a competitor for cache and memory",
    "rootless": "direct builds against CRIU's: state, pages, region times, stops, whole builds, room",
    "threads": "programs whose threads share the work, and restores of two threads",
    "synthetic": "probes of array programs with their data and without",
    "warmup": "what each length of warm-up does to region times",
}
"""What can be measured instead of the programs of docs/figures.md, by the word on the command line."""

_DESCRIPTION = "Measure how well probes predict, and what they cost, on this machine."


def _programs(text: str) -> list[str]:
    """Names of programs, known ones alone. Raises argparse.ArgumentTypeError."""
    names = text.split(",")
    if unknown := [n for n in names if n not in KNOWN]:
        raise argparse.ArgumentTypeError(f"no program {', '.join(map(repr, unknown))}; there are: {', '.join(KNOWN)}")
    return names


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or `given`. Raises SystemExit: 2 after a wrong option, 0 after --help."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=_DESCRIPTION)
    parser.add_argument(
        "what",
        nargs="?",
        choices=list(SUITES),
        help="; ".join(f"{name}: {measured}" for name, measured in SUITES.items()),
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds of `accuracy`, `selection` and `rootless`")
    parser.add_argument(
        "--baselines", type=int, default=1, help="seeds of `accuracy` with random intervals restored, too"
    )
    parser.add_argument("--interval", type=float, default=0.02, help="seconds, of `accuracy` and `warmup`")
    parser.add_argument("--estimate", action="store_true", help="say how long `accuracy` would take, and leave")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the tables of `accuracy`, `arrays`, `noise`, `rootless`, `threads`, `breadth` or `hosts`",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure `arrays`, `breadth`, `hosts`, `mpi`, `noise`, `rootless`, `threads` or `emulation` though there "
        "are rows",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="programs of `arrays`, `breadth`, `mpi`, `rootless`, `threads` or `synthetic`, experiments of `emulation`",
    )
    parser.add_argument("--there", action="store_true", help="of `synthetic`: predict again on the emulated node")
    parser.add_argument("--restores", type=int, metavar="N", help="of `threads`: count N restores, no predictions")
    parser.add_argument(
        "--long", type=float, default=20.0, metavar="MINUTES", help="of `rootless`: how long its long program takes"
    )
    parser.add_argument(
        "--untimed",
        action="store_true",
        help="of `rootless`: no region times, so that the machine may be in use meanwhile",
    )
    parser.add_argument(
        "--nine", action="store_true", help="of `rootless`: compare whole builds with those of nine full runs, too"
    )
    parser.add_argument("--width", type=int, choices=threads.WIDTHS, help="of `threads`: how many (default: each)")
    parser.add_argument("--aside", action="store_true", help="programs of `breadth` that are set aside, too")
    parser.add_argument(
        "--limit", type=float, default=0.0, metavar="MINUTES", help="begin no program of `breadth` later"
    )
    parser.add_argument("--build", action="store_true", help="build the kept probes of `hosts` anew, and leave")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of `many`")
    parser.add_argument("--programs", type=_programs, help="names, parted by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="few programs, no program of a minute")
    parser.add_argument("--repeat", type=int, default=5, help="repeats of every phase in `probe run`")
    parser.add_argument("--full-runs", type=int, default=5, help="full runs to compare with")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--clock", choices=["", CLOCK], default="", help="what time the emulated node goes by")
    parser.add_argument("--keep", action="store_true", help="keep the work folders")
    parser.add_argument("--report", action="store_true", help="print the table of the records there are, and leave")
    arguments = parser.parse_args(given)
    if arguments.what == "emulation" and (unknown := sorted({*(arguments.only or ())} - {*EXPERIMENTS})):
        parser.error(f"no experiment {', '.join(unknown)}; there are: {', '.join(EXPERIMENTS)}")
    if arguments.what == "arrays" and (unknown := sorted({*(arguments.only or ())} - {*KERNELS})):
        parser.error(f"no kernel {', '.join(unknown)}; there are: {', '.join(KERNELS)}")
    if arguments.what == "threads" and (unknown := sorted({*(arguments.only or ())} - {*threads.NAMES})):
        parser.error(f"no program {', '.join(unknown)}; there are: {', '.join(threads.NAMES)}")
    if arguments.what == "rootless" and (unknown := sorted({*(arguments.only or ())} - {*rootless.NAMES})):
        parser.error(f"no program {', '.join(unknown)}; there are: {', '.join(rootless.NAMES)}")
    if arguments.long <= 0 or (arguments.what == "rootless" and arguments.seeds < 1):
        parser.error("--long and --seeds of rootless: more than 0")
    if arguments.width and arguments.what != "threads":
        parser.error("--width is for threads")
    if arguments.what == "mpi" and (unknown := sorted({*(arguments.only or ())} - {*mpi.NAMES})):
        parser.error(f"no program {', '.join(unknown)}; there are: {', '.join(mpi.NAMES)}")
    if arguments.what == "synthetic" and (unknown := sorted({*(arguments.only or ())} - {*WITH_DATA})):
        parser.error(f"no program {', '.join(unknown)}; there are: {', '.join(WITH_DATA)}")
    if arguments.what == "breadth":
        try:
            breadth.named(arguments.only, arguments.aside)
        except ValueError as error:
            parser.error(str(error))
    return arguments


def packages(arguments: argparse.Namespace) -> list[str]:
    """Distribution packages that measuring needs."""
    what = arguments.what
    if what == "breadth":
        chosen = [] if arguments.report else breadth.named(arguments.only, arguments.aside)
        return sorted({package for program in chosen for package in program.packages.split()})
    if what == "mpi":
        return [] if arguments.report else list(mpi.PACKAGES)
    if what in ("simulate", "mpi-scale"):
        return ["libsimgrid-dev"]
    if what in ("arrays", "synthetic"):
        return []
    if what == "emulation":
        return ["bc", "bwa", "bzip2", "clustalw", "gawk", "gnugo", "gromacs", "gzip", "hmmer", "lame", "perl-base",
                "tachyon", "valgrind"]  # fmt: skip
    if what == "rootless":
        return [] if arguments.report else rootless.packages(arguments.only or rootless.NAMES)
    if what == "threads":
        return [] if arguments.restores or arguments.report else sorted({*threads.packages(), QUICKSTART.package})
    if what == "hosts":
        return ["bc", "coreutils", "perl-base", "python3"]
    programs = (QUICKSTART, *PACKAGED, *(ACCURACY_ONLY if what in ("accuracy", "noise") else ()))
    needed = {b.package for b in programs} | {"valgrind"}
    if what == "decisions":
        needed |= {"slurmctld", "slurmd", "slurm-client", "munge"}
    return sorted(needed)


if __name__ == "__main__":
    print("\n".join(packages(read_arguments())))
