# SPDX-License-Identifier: Apache-2.0
"""Programs whose threads share the work: kernels of data/programs, and packaged programs, each with any threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.programs import ACCURACY_ONLY, OWN, Benchmark

WIDTHS = (1, 2)
"""Threads that programs are measured with."""

_OPENMP = {
    "pairs": "random pairs: equal shares, a reduction (as NPB's EP)",
    "sparse": "sparse products, reductions, barriers in one region (as NPB's CG)",
    "relaxed": "relaxation on a grid: equal shares (as NPB's MG)",
    "triangle": "a triangle, guided",
    "fractal": "a fractal, dynamic",
    "sorted": "counts of keys, added up under a lock (as NPB's IS)",
    "tasks": "a tree of OpenMP tasks",
}
_ALWAYS_TWO = "pipeline"

_PTHREADS = {
    "barrier": "pthreads with a barrier behind each round",
    "queue": "a queue behind a lock",
    "pool": "a pool that sleeps between orders",
    _ALWAYS_TWO: "a pipeline of two threads",
}
_WORDS = {"hmmsearch-few": ("--cpu", "0"), "bwa": ("-t", "1"), "gromacs": ("-nt 1", "-nt 1"),
          "tachyon": ("-numthreads 1", "-numthreads 1")}  # fmt: skip
"""Packaged programs, and the words of each command line that say how many threads."""

NAMES = (*_OPENMP, *_PTHREADS, *_WORDS, "xz")


def rows(names: Sequence[str], widths: Sequence[int]) -> list[tuple[str, int]]:
    """Names and widths that there are: not every program can work with one thread."""
    return [(name, width) for name in names for width in widths if width > 1 or name != _ALWAYS_TWO]


def with_threads(name: str, threads: int) -> Benchmark:
    """The program of NAMES with so many threads; KeyError for another name."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    wide = f"{name}-{threads}"
    if name in _OPENMP:
        return Benchmark(wide, (str(OWN / "openmp"), name), _OPENMP[name], environment=environment, threads=threads)
    if name in _PTHREADS:
        return Benchmark(wide, (str(OWN / "pthreads"), name), _PTHREADS[name], environment=environment, threads=threads)
    if name == "xz":
        argv = ("xz", f"-T{threads}", "-9", "-c", "small.txt")
        return Benchmark(wide, argv, "compressor with threads", "xz-utils", threads=threads)
    found = {b.name: b for b in ACCURACY_ONLY}[name]
    # With `--cpu 1` hmmsearch has two threads: one reads for the other.
    argv = found.argv if threads == 1 else _counted(found.argv, *_WORDS[name], threads)
    return replace(found, name=wide, argv=argv, environment={**found.environment, **environment}, threads=threads)


def _counted(argv: Sequence[str], option: str, value: str, threads: int) -> tuple[str, ...]:
    """The command line with so many threads: `value` behind `option`, or within the word of a shell."""
    if option == value:
        return tuple(word.replace(option, f"{option[:-1]}{threads}") for word in argv)
    at = argv.index(option) + 1
    return (*argv[:at], str(threads), *argv[at + 1 :])


def need_inputs(names: Sequence[str]) -> bool:
    """Whether one of these programs reads a file."""
    return any(with_threads(name, 2).package for name in names)


def packages() -> list[str]:
    """Distribution packages that the programs need."""
    return sorted({b.package for name in NAMES for b in [with_threads(name, 2)] if b.package})
