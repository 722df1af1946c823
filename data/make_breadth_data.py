#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the inputs of `scripts/bench breadth` that are not kept in data/breadth.

Everything follows from one seed, through the standard library alone, so two machines compute on the same data. Only
the files named on the command line are made.

Usage: make_breadth_data.py FOLDER NAME...
"""

from __future__ import annotations

import argparse
import math
import random
import wave
from collections.abc import Iterator
from pathlib import Path

from breadth_problems import beam, differences, factoring, knapsacks, polytope, satisfiable, transport
from breadth_sources import (
    Maker,
    article,
    assembly,
    fortran,
    functional,
    grammar,
    manuscript,
    markdown,
    pascal,
    written,
)
from make_bench_data import NUCLEOTIDES, RESIDUES, descendants, facilities, mutated, queries, source, text, vocabulary
from make_media_data import genome_and_reads, liquid, picture, scene, sound

SEED = 2011


def prose(size: int, times: int = 1) -> Maker:
    """A text of about `size` bytes, so many times."""
    return written(lambda rng: list(text(rng, size)) * times)


def letters(rng: random.Random, count: int) -> str:
    return "".join(rng.choices(NUCLEOTIDES, k=count))


def fasta(count: int, length: int, alphabet: str, rate: float, gaps: float) -> Maker:
    """Sequences at the leaves of a tree of descent."""

    def parts(rng: random.Random) -> Iterator[str]:
        for number, sequence in enumerate(descendants(rng, count, length, alphabet, rate, gaps)):
            yield f">seq{number}\n{sequence}\n"

    return written(parts)


def families(count: int, members: int, length: int) -> Maker:
    """Unlike sequences, each with some of its likes: for a search or a clustering."""

    def parts(rng: random.Random) -> Iterator[str]:
        for family in range(count):
            ancestor = letters(rng, length)
            for member in range(members):
                yield f">f{family}m{member}\n{mutated(rng, ancestor, NUCLEOTIDES, 0.03, 0.005)}\n"

    return written(parts)


def tested_alignment(rng: random.Random) -> Iterator[str]:
    """Aligned FASTA: nothing is lost in descent."""
    for number, sequence in enumerate(descendants(rng, 200, 900, NUCLEOTIDES, 0.04, 0.0)):
        yield f">taxon{number}\n{sequence}\n"


def contacts(count: int) -> Maker:
    """Records of recutils."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 500)
        yield "%rec: Contact\n%type: Age int\n\n"
        for number in range(count):
            yield f"Name: {rng.choice(words)} {rng.choice(words)}\n"
            yield f"Age: {rng.randrange(90)}\nCity: {rng.choice(words)}\n"
            yield f"Number: {number}\n\n"

    return written(parts)


def sales(count: int) -> Maker:
    """XML."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 1000)
        yield '<?xml version="1.0"?>\n<sales>\n'
        for number in range(count):
            yield f'<sale id="{number}" shop="{rng.randrange(60)}"><item>{rng.choice(words)}</item>'
            yield f"<price>{rng.uniform(1, 500):.2f}</price><note>{' '.join(rng.choices(words, k=6))}</note></sale>\n"
        yield "</sales>\n"

    return written(parts)


def objects(count: int) -> Maker:
    """JSON, an array of objects."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 1000)
        yield "[\n"
        for number in range(count):
            yield f'{{"id": {number}, "shop": {rng.randrange(60)}, "price": {rng.uniform(1, 500):.2f}, '
            yield f'"tags": ["{rng.choice(words)}", "{rng.choice(words)}"]}}{"," * (number < count - 1)}\n'
        yield "]\n"

    return written(parts)


def journal(count: int) -> Maker:
    """Transactions of plain-text accounting, from one account to another."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 300)
        accounts = [f"{kind}:{word}" for kind in ("Assets", "Expenses", "Income", "Liabilities") for word in words[:20]]
        for number in range(count):
            month, day = divmod(number * 336 // count, 28)
            source, goal = rng.sample(accounts, 2)
            yield f"2025-{month + 1:02}-{day + 1:02} {rng.choice(words)} {rng.choice(words)}\n"
            yield f"    {goal}  {rng.uniform(1, 900):.2f} EUR\n    {source}\n\n"

    return written(parts)


def values(count: int) -> Maker:
    """A table of three columns: a group, and two numbers."""

    def parts(rng: random.Random) -> Iterator[str]:
        for _ in range(count):
            yield f"g{rng.randrange(50)}\t{rng.gauss(0, 1):.6f}\t{rng.randrange(10**6)}\n"

    return written(parts)


def noisy_wave(rng: random.Random) -> Iterator[str]:
    for number in range(60_000):
        x = number * 2e-4
        yield f"{x:.4f} {2 * math.sin(1.3 * x) * math.exp(-0.08 * x) + 0.5 + rng.gauss(0, 0.2):.5f}\n"


def labelled(count: int, features: int) -> Maker:
    """The format of libsvm: two classes that overlap."""

    def parts(rng: random.Random) -> Iterator[str]:
        for number in range(count):
            sign = 1 if number % 2 else -1
            numbers = " ".join(f"{i}:{rng.gauss(0.25 * sign, 1):.4f}" for i in range(1, features + 1))
            yield f"{sign:+d} {numbers}\n"

    return written(parts)


def line_data(rng: random.Random) -> Iterator[str]:
    """R dump format, for JAGS."""
    x = [rng.gauss(0, 1) for _ in range(400)]
    y = [1 + 2 * value + rng.gauss(0, 0.5) for value in x]
    yield f"n <- {len(x)}\n"
    yield "x <- c(" + ",".join(f"{v:.4f}" for v in x) + ")\ny <- c(" + ",".join(f"{v:.4f}" for v in y) + ")\n"


def network(nodes: int, edges: int) -> Maker:
    """A graph for dot: layers, and edges between neighbouring ones."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "digraph g {\n"
        for _ in range(edges):
            a = rng.randrange(nodes)
            yield f"  n{a} -> n{min(nodes - 1, a + rng.randint(1, 25))};\n"
        yield "}\n"

    return written(parts)


def smiles(count: int) -> Maker:
    """Molecules of rings, chains and groups."""

    def parts(rng: random.Random) -> Iterator[str]:
        groups = ("C", "CC", "C(=O)O", "OC", "N", "C(F)(F)F", "CCO", "C(=O)N", "c1ccncc1", "C1CCCCC1")
        for number in range(count):
            yield f"{rng.choice(groups)}c1cc({rng.choice(groups)})cc({rng.choice(groups)})c1 molecule{number}\n"

    return written(parts)


def water(count: int) -> Maker:
    """MOPAC: a cluster of water molecules, its geometry to be optimised."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "PM7 THREADS=1\nwater\n\n"
        for number in range(count):
            x, y, z = (3.0 * place + rng.uniform(-0.2, 0.2) for place in (number % 3, number // 3 % 3, number // 9))
            for letter, dx, dy in (("O", 0.0, 0.0), ("H", 0.96, 0.0), ("H", -0.24, 0.93)):
                yield f"{letter} {x + dx:.4f} 1 {y + dy:.4f} 1 {z:.4f} 1\n"

    return written(parts)


def tiny_repository(rng: random.Random) -> Iterator[str]:
    """A stream for `git fast-import`: one branch, many versions of some texts."""
    words = vocabulary(rng, 4000)
    files = [[" ".join(rng.choices(words, k=9)) for _ in range(300)] for _ in range(40)]
    for commit in range(2500):
        changed = rng.sample(range(40), 4)
        yield f"commit refs/heads/main\nmark :{commit + 1}\n"
        yield f"committer N <n@example.org> {1700000000 + commit} +0000\n"
        yield "data 4\nstep" + f"\nfrom :{commit}" * bool(commit) + "\n"
        for number in changed:
            files[number][rng.randrange(300)] = " ".join(rng.choices(words, k=9))
            content = "\n".join(files[number]) + "\n"
            yield f"M 100644 inline file{number}.txt\ndata {len(content)}\n{content}\n"


def long_sound(rng: random.Random, path: Path) -> None:
    """WAV: six times a minute."""
    sound(rng, path, 60)
    with wave.open(str(path), "rb") as file:
        form, samples = file.getparams(), file.readframes(file.getnframes())
    with wave.open(str(path), "wb") as file:
        file.setparams(form)
        file.writeframes(6 * samples)


MAKERS: dict[str, Maker] = {
    "text-60m": prose(20_000_000, times=3),
    "text-20m": prose(20_000_000),
    "text-4m": prose(4_000_000),
    "text-1m": prose(1_000_000),
    "text-400k": prose(400_000),
    "text-60k": prose(60_000),
    "secret": written(lambda _: iter(["secret"])),
    "source.c": written(lambda rng: source(rng, 320)),
    "module.c": written(lambda rng: source(rng, 130)),
    "source.f90": fortran(120),
    "source.pas": pascal(6000),
    "source.ml": functional(1500),
    "source.asm": assembly(100_000),
    "source.y": grammar(330),
    "sound.wav": lambda rng, path: sound(rng, path, 40),
    "long.wav": long_sound,
    "picture.ppm": lambda rng, path: picture(rng, path, 800, 600),
    "genome.fa": lambda rng, path: genome_and_reads(rng, path.parent, 1_000_000, 90_000),
    "reads.fq": lambda rng, path: genome_and_reads(rng, path.parent, 1_000_000, 90_000),
    "balls.dat": scene,
    "argon.gro": lambda rng, path: liquid(rng, path.parent, 12),
    "argon.top": lambda rng, path: liquid(rng, path.parent, 12),
    "argon.mdp": lambda rng, path: liquid(rng, path.parent, 12),
    "proteins.fa": fasta(500, 400, RESIDUES, 0.08, 0.01),
    "few-proteins.fa": fasta(24, 250, RESIDUES, 0.08, 0.01),
    "genes.fa": fasta(50, 700, NUCLEOTIDES, 0.08, 0.01),
    "families.fa": families(600, 6, 600),
    "aligned.fa": written(tested_alignment),
    "random.cnf": satisfiable(300, 4.8),
    "factors.smt2": factoring(20, 641_117 * 950_009),
    "shop.smt2": differences(11, 9, 40),
    "facilities.lp": written(facilities),
    "knapsack.lp": knapsacks(90, 30),
    "transport.mps": transport(500, 1200),
    "contacts.rec": contacts(120_000),
    "sales.xml": sales(20_000),
    "objects.json": objects(400_000),
    "year.journal": journal(60_000),
    "values.tsv": values(2_000_000),
    "points.dat": written(noisy_wave),
    "labelled.txt": labelled(14_000, 20),
    "line.data": written(line_data),
    "graph.dot": network(1500, 2900),
    "molecules.smi": smiles(20_000),
    "water.mop": water(10),
    "account.ms": manuscript(7000),
    "article.tex": article(1900),
    "account.md": markdown(1500),
    "beam.inp": beam(60),
    "cube.ine": polytope(7, 170),
    "queries.sql": written(queries),
    "history.txt": written(tiny_repository),
}  # fmt: skip
"""By the name of the file. Some makers make others beside it, which are not for use."""

TOGETHER = {"genome.fa": "reads.fq", "argon.top": "argon.gro", "argon.mdp": "argon.gro"}
"""Files that belong together come from the randomness of one of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=list(MAKERS), metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.names:
        MAKERS[name](random.Random(f"{SEED} {TOGETHER.get(name, name)}"), arguments.folder / name)


if __name__ == "__main__":
    main()
