# SPDX-License-Identifier: Apache-2.0
"""Programs that are measured: our own small ones with known phases, and packaged ones of different kinds.

Relative file names are those of data/make_bench_data.py and data/make_hmmer_data.py; every program runs in the folder
that holds them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OWN = Path(__file__).parents[2] / "data" / "programs" / "bin"


@dataclass(frozen=True)
class Benchmark:
    """One command line. `package` is the distribution's (empty: built here); `expected_refusal`: no probe can be made
    of it, and a clear message is what is measured. `environment` comes on top of an empty one. `threads`: that work at
    the same time, and so processors that its full runs get."""

    name: str
    argv: tuple[str, ...]
    kind: str
    package: str = ""
    stdin: str = "/dev/null"
    environment: Mapping[str, str] = field(default_factory=dict)
    expected_refusal: bool = False
    threads: int = 1


def _own(name: str, kind: str, *arguments: str) -> Benchmark:
    return Benchmark(name, (str(OWN / name.partition("-")[0]), *arguments), kind)


OWN_PROGRAMS = (
    _own("matmul", "matrix multiplication: one phase"),
    _own("nbody", "floating point in the caches"),
    _own("sweep", "wavefront over a grid"),
    _own("chase", "pointer chase through memory"),
    _own("sorter", "four ways to sort"),
    _own("stencil", "relaxation on a grid"),
    _own("phases", "eight kernels, cycles per instruction from 0.2 to 40"),
)

LONG = Benchmark("phases-60s", (str(OWN / "phases"), "54"), "the same for a minute")

QUICKSTART = Benchmark(
    "hmmsearch",
    ("hmmsearch", "--cpu", "0", "-o", "/dev/null", "families.hmm", "database.fa"),
    "profile search, reads its input as it goes",
    "hmmer",
)

PACKAGED = (
    Benchmark("clustalw", ("clustalw", "-INFILE=proteins.fa", "-OUTFILE=/dev/null", "-NEWTREE=/dev/null"),
              "multiple alignment", "clustalw"),
    Benchmark("phyml", ("/usr/lib/phyml/bin/phyml", "-i", "alignment.phy", "-b", "0", "--r_seed", "1",
                        "--no_memory_check", "--quiet"), "tree search, writes files", "phyml"),
    Benchmark("perl", ("/usr/bin/perl", "words.pl", "small.txt"), "script interpreter, memory that grows", "perl-base",
              environment={"PERL_HASH_SEED": "0"}),
    Benchmark("python3", ("/usr/bin/python3", "mixture.py", "small.txt"), "script interpreter", "python3",
              environment={"PYTHONHASHSEED": "0"}),
    Benchmark("sqlite3", ("sqlite3", ":memory:"), "database, in a shared library", "sqlite3", stdin="queries.sql"),
    Benchmark("gzip", ("gzip", "-9", "-c", "large.txt"), "compressor, own code", "gzip"),
    Benchmark("bzip2", ("bzip2", "-9", "-c", "large.txt"), "compressor, in a shared library", "bzip2"),
    Benchmark("xz", ("xz", "-T1", "-9", "-c", "small.txt"), "compressor that keeps a pipe to itself", "xz-utils",
              expected_refusal=True),
    # Not `-o /dev/null`: glpsol removes its output file first, and as root the device with it.
    Benchmark("glpsol", ("glpsol", "--lp", "facilities.lp"), "integer programming, in a library", "glpk-utils"),
    Benchmark("minisat", ("minisat", "random.cnf"), "solver whose exit status is its answer", "minisat"),
    Benchmark("cc1", ("cc1", "-fpreprocessed", "-O2", "-quiet", "source.i", "-o", "/dev/null"),
              "compiler: 30 MB of code, much allocation", "gcc"),
    Benchmark("bc", ("bc", "-l", "digits.bc"), "long numbers: one flat loop", "bc"),
    Benchmark("xz-threads", ("xz", "-T2", "-9", "-c", "small.txt"), "starts threads", "xz-utils",
              expected_refusal=True),
)  # fmt: skip

ACCURACY_ONLY = (
    Benchmark("hmmsearch-few", ("hmmsearch", "--cpu", "0", "-o", "/dev/null", "few.hmm", "database.fa"),
              "sequence search with profiles", "hmmer"),
    Benchmark("bwa", ("bwa", "aln", "-t", "1", "genome.fa", "reads.fq"), "alignment of short reads", "bwa"),
    # These three print times, which two plain runs may agree in and the traced one not.
    Benchmark("tachyon", ("/bin/sh", "-c", "exec tachyon balls.dat -numthreads 1 -o /dev/null >/dev/null"),
              "rendering: ray tracing", "tachyon"),
    Benchmark("gnugo", ("/bin/sh", "-c", "exec /usr/games/gnugo --benchmark 24 --seed 1 --level 10 >/dev/null"),
              "game tree search: Go", "gnugo"),
    Benchmark("gromacs", ("/bin/sh", "-c", "exec gmx mdrun -nt 1 -s argon.tpr -deffnm argon-run -nsteps 12000 "
                          ">/dev/null 2>&1"), "molecular dynamics, in a library", "gromacs",
              environment={"GMX_NO_QUOTES": "1", "GMX_MAXBACKUP": "-1"}),
    Benchmark("cwebp", ("cwebp", "-quiet", "-m", "6", "-q", "95", "-pass", "10", "picture.ppm", "-o", "/dev/null"),
              "image coding, in a library", "webp"),
    Benchmark("lame", ("lame", "--quiet", "-q", "0", "sound.wav", "/dev/null"), "sound coding, in a library", "lame"),
)  # fmt: skip
"""Kinds that the other programs are not of. Relative file names are those of data/make_media_data.py, too."""

SHORT = (
    _own("sorter-short", "four ways to sort", "2"),
    _own("nbody-short", "floating point in the caches", "600"),
    Benchmark("gzip-short", ("gzip", "-9", "-c", "medium.txt"), "compressor, own code", "gzip"),
    Benchmark("bzip2-short", ("bzip2", "-9", "-c", "medium.txt"), "compressor, in a shared library", "bzip2"),
    Benchmark("perl-short", ("/usr/bin/perl", "words.pl", "tiny.txt"), "script interpreter", "perl-base",
              environment={"PERL_HASH_SEED": "0"}),
    Benchmark("clustalw-short", ("clustalw", "-INFILE=few-proteins.fa", "-OUTFILE=/dev/null", "-NEWTREE=/dev/null"),
              "multiple alignment", "clustalw"),
    Benchmark("bc-short", ("bc", "-l", "few-digits.bc"), "long numbers: one flat loop", "bc"),
    Benchmark("hmmsearch-short", ("hmmsearch", "--cpu", "0", "-o", "/dev/null", "few.hmm", "small-database.fa"),
              "profile search, vector instructions", "hmmer"),
)  # fmt: skip
"""What `scripts/bench exact` measures: one to two seconds each, since exp-bbv takes many times that. Their inputs are
the beginnings of the others' (inputs.make_short_inputs)."""

ARRAYS = tuple(
    Benchmark(f"arrays-{kernel}", (str(OWN / "arrays"), kernel), f"array kernel: {what}")
    for kernel, what in (
        ("triad", "streams"), ("transpose", "strides"), ("gather", "random reads"), ("histogram", "random writes"),
        ("fft", "Fourier transform"), ("lu", "dense elimination"), ("spmv", "sparse product"), ("smooth", "stencil"),
    )
)  # fmt: skip
"""What `scripts/bench noise` measures beside the programs of `scripts/bench accuracy`."""

WITH_DATA = {
    "stencil": ("4000",),
    "multigrid": ("40",),
    "conjugate": ("3000",),
    "fourier": ("800",),
    "molecules": ("4000",),
    "sorter": ("12",),
}
"""Programs of data/programs and their arguments: multigrid has 450 MB of memory; the last one sorts, where data are
control flow."""

EVERYTHING = (*OWN_PROGRAMS, QUICKSTART, *PACKAGED)
KNOWN = {b.name: b for b in (*EVERYTHING, *ACCURACY_ONLY, *SHORT, *ARRAYS)}
"""All that can be named, by name."""
QUICK = ("matmul", "phases", "perl", "gzip")

ACCURACY = (
    "hmmsearch-few", "clustalw", "bwa", "gzip", "tachyon", "perl", "sqlite3", "gnugo", "cwebp", "lame", "phyml",
    "gromacs",
)  # fmt: skip
"""What `scripts/bench accuracy` measures: a dozen packaged programs, each of another kind."""

ACCURACY_QUICK = ("clustalw", "gzip")
EXACT_QUICK = ("sorter-short", "gzip-short")
EXACT_RECORDED = "perl-short"
"""Whose intervals the collector of `scripts/bench exact` is given from memory: much code, in many mixtures."""


def resolved(benchmark: Benchmark) -> tuple[str, ...]:
    """The command line with the compiler proper, which is on no PATH, in its place."""
    if benchmark.argv[0] != "cc1":
        return benchmark.argv
    found = subprocess.run(["gcc", "-print-prog-name=cc1"], check=True, capture_output=True, text=True)
    return (found.stdout.strip(), *benchmark.argv[1:])
