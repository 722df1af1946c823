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
from collections.abc import Callable, Iterator
from pathlib import Path

from make_bench_data import NUCLEOTIDES, RESIDUES, descendants, facilities, mutated, queries, source, text, vocabulary
from make_media_data import genome_and_reads, liquid, picture, scene, sound

SEED = 2011

Maker = Callable[[random.Random, Path], None]
"""Makes one file at the path, or in the path's folder."""


def written(parts: Callable[[random.Random], Iterator[str]]) -> Maker:
    """A maker of a text file from its parts."""

    def make(rng: random.Random, path: Path) -> None:
        with path.open("w") as file:
            file.writelines(parts(rng))

    return make


def prose(size: int) -> Maker:
    return written(lambda rng: text(rng, size))


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
    for number, sequence in enumerate(descendants(rng, 380, 900, NUCLEOTIDES, 0.04, 0.0)):
        yield f">taxon{number}\n{sequence}\n"


def satisfiable(variables: int, ratio: float) -> Maker:
    """DIMACS: random 3-SAT with `ratio` clauses a variable."""

    def parts(rng: random.Random) -> Iterator[str]:
        clauses = round(ratio * variables)
        yield f"p cnf {variables} {clauses}\n"
        for _ in range(clauses):
            chosen = rng.sample(range(1, variables + 1), 3)
            yield " ".join(str(v if rng.random() < 0.5 else -v) for v in chosen) + " 0\n"

    return written(parts)


def pigeons(holes: int) -> Maker:
    """DIMACS: one pigeon more than there are holes."""

    def parts(_: random.Random) -> Iterator[str]:
        def at(pigeon: int, hole: int) -> int:
            return pigeon * holes + hole + 1

        pairs = [(p, q) for p in range(holes + 1) for q in range(p)]
        yield f"p cnf {(holes + 1) * holes} {holes + 1 + len(pairs) * holes}\n"
        for pigeon in range(holes + 1):
            yield " ".join(str(at(pigeon, hole)) for hole in range(holes)) + " 0\n"
        for hole in range(holes):
            for p, q in pairs:
                yield f"-{at(p, hole)} -{at(q, hole)} 0\n"

    return written(parts)


def factoring(bits: int, product: int) -> Maker:
    """SMT-LIB: which two numbers of `bits` bits, the smaller first, have this product?"""

    def parts(_: random.Random) -> Iterator[str]:
        wide = 2 * bits
        yield f"(set-logic QF_BV)\n(declare-fun a () (_ BitVec {wide}))\n(declare-fun b () (_ BitVec {wide}))\n"
        yield f"(assert (= (bvmul a b) (_ bv{product} {wide})))\n"
        for name in "ab":
            yield f"(assert (bvult {name} (_ bv{1 << bits} {wide})))\n(assert (bvugt {name} (_ bv1 {wide})))\n"
        yield "(assert (bvule a b))\n(check-sat)\n"

    return written(parts)


def differences(jobs: int, machines: int) -> Maker:
    """SMT-LIB, real difference logic: a job shop that ends in time."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "(set-logic QF_LRA)\n"
        length = {(j, m): rng.randint(2, 20) for j in range(jobs) for m in range(machines)}
        order = {j: rng.sample(range(machines), machines) for j in range(jobs)}
        yield "".join(f"(declare-fun s{j}x{m} () Real)\n(assert (>= s{j}x{m} 0))\n" for j, m in length)
        for j in range(jobs):
            for before, after in zip(order[j], order[j][1:]):
                yield f"(assert (>= (- s{j}x{after} s{j}x{before}) {length[j, before]}))\n"
        for m in range(machines):
            for j in range(jobs):
                for k in range(j):
                    yield f"(assert (or (>= (- s{j}x{m} s{k}x{m}) {length[k, m]}) (>= (- s{k}x{m} s{j}x{m}) {length[j, m]})))\n"
        bound = round(1.0 * max(sum(length[j, m] for j in range(jobs)) for m in range(machines)))
        yield "".join(f"(assert (<= (+ s{j}x{m} {length[j, m]}) {bound}))\n" for j, m in length)
        yield "(check-sat)\n"

    return written(parts)


def knapsacks(items: int, rows: int) -> Maker:
    """LP format of lp_solve: binary choice under several bounds."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "max: " + " + ".join(f"{rng.randint(10, 99)} x{i}" for i in range(items)) + ";\n"
        for row in range(rows):
            weights = [rng.randint(5, 60) for _ in range(items)]
            yield f"c{row}: " + " + ".join(f"{w} x{i}" for i, w in enumerate(weights)) + f" <= {sum(weights) // 3};\n"
        yield "".join(f"x{i} <= 1;\n" for i in range(items)) + "int " + ",".join(f"x{i}" for i in range(items)) + ";\n"

    return written(parts)


def transport(sources: int, goals: int) -> Maker:
    """Free MPS: a transport of goods through a network with bounds."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "NAME transport\nROWS\n N cost\n"
        yield "".join(f" L s{s}\n" for s in range(sources)) + "".join(f" G g{g}\n" for g in range(goals)) + "COLUMNS\n"
        for s in range(sources):
            for g in range(goals):
                yield f" x{s}_{g} cost {rng.randint(1, 900)} s{s} 1\n x{s}_{g} g{g} {rng.randint(8, 10)}\n"
        needs = [rng.randint(20, 60) for _ in range(goals)]
        room = 2 * sum(needs) // sources // 8 + 1
        yield "RHS\n" + "".join(f" RHS s{s} {room}\n" for s in range(sources))
        yield "".join(f" RHS g{g} {need}\n" for g, need in enumerate(needs)) + "ENDATA\n"

    return written(parts)


def contacts(count: int) -> Maker:
    """Records of recutils."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 500)
        yield "%rec: Contact\n%type: Age int\n\n"
        for number in range(count):
            yield f"Name: {rng.choice(words)} {rng.choice(words)}\nAge: {rng.randrange(90)}\nCity: {rng.choice(words)}\n"
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


def fortran(count: int) -> Maker:
    """Fortran 90: many subroutines of loops."""

    def parts(rng: random.Random) -> Iterator[str]:
        for number in range(count):
            yield f"subroutine s{number}(a, b, n)\n  integer :: n, i, j\n  real(8) :: a(n, n), b(n, n), t\n  do j = 2, n - 1\n"
            yield "    do i = 2, n - 1\n"
            for _ in range(6):
                yield f"      t = a(i - 1, j) * {rng.random():.3f}d0 + b(i, j + 1) * {rng.random():.3f}d0\n"
                yield f"      if (t > {rng.random():.3f}d0) then\n        b(i, j) = sqrt(abs(t)) + a(i, j)\n      else\n"
                yield f"        a(i, j) = t * b(i, j) - {rng.randint(1, 9)}\n      end if\n"
            yield f"    end do\n  end do\nend subroutine s{number}\n\n"

    return written(parts)


def pascal(count: int) -> Maker:
    """Pascal: many functions, and a program that calls them."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "program big;\n{$mode objfpc}\n"
        for number in range(count):
            yield f"function f{number}(x: longint; s: string): longint;\nvar i, t: longint;\nbegin\n  t := {rng.randint(1, 99)};\n"
            yield f"  for i := 1 to x do begin\n    if (i mod {rng.randint(2, 9)}) = 0 then t := t + i * {rng.randint(2, 9)}\n"
            yield f"    else t := t xor (i shl {rng.randint(1, 4)});\n    if t > length(s) * {rng.randint(10, 99)} then t := t div 3;\n  end;\n"
            yield "  result := t;\nend;\n"
        yield "begin\n" + "".join(f"  writeln(f{n}({n % 50}, 'a{n}'));\n" for n in range(count)) + "end.\n"

    return written(parts)


def assembly(count: int) -> Maker:
    """NASM: instructions, labels and macros."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "bits 64\nsection .text\n%macro twice 2\n  add %1, %2\n  add %1, %2\n%endmacro\n"
        registers = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
        for number in range(count):
            a, b = rng.sample(registers, 2)
            yield f"l{number}:\n  mov {a}, [{b} + {rng.randrange(4096)}]\n  twice {a}, {b}\n  cmp {a}, {rng.randrange(10**6)}\n"
            yield f"  jne l{rng.randrange(max(0, number - 9), number + 1)}\n  lea {b}, [{a} * 4 + {rng.randrange(64)}]\n"

    return written(parts)


def grammar(rules: int) -> Maker:
    """Bison: statements and expressions of many levels, so that the automaton is large."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield "%token ID NUM END\n" + "".join(f"%token K{n} O{n}\n" for n in range(rules)) + "%%\nstart: list END;\n"
        yield "list: %empty | list statement;\nstatement: e0 ';'\n"
        yield "".join(f"  | K{n} '(' e{n} ')' statement K{(n + 1) % rules} list K{n}\n" for n in range(rules)) + ";\n"
        for n in range(rules):
            yield f"e{n}: e{n + 1} | e{n} O{n} e{n + 1} | K{rng.randrange(rules)} e{n} ',' e{n + 1} ')';\n"
        yield f"e{rules}: ID | NUM | '(' e0 ')';\n"

    return written(parts)


def manuscript(paragraphs: int) -> Maker:
    """groff -ms: headings, lists, tables of tabs, and paragraphs."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 3000)
        yield ".TL\nAn account\n.AU\nNobody\n"
        for number in range(paragraphs):
            if number % 8 == 0:
                yield f".NH\n{' '.join(rng.choices(words, k=4))}\n"
            if number % 5 == 0:
                yield "".join(f".IP \\(bu\n{' '.join(rng.choices(words, k=12))}\n" for _ in range(3))
            yield f".PP\n{' '.join(rng.choices(words, k=110))}.\n"

    return written(parts)


def article(sections: int) -> Maker:
    """LaTeX: formulas, lists, and paragraphs."""

    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 3000)
        yield "\\documentclass{article}\n\\begin{document}\n\\tableofcontents\n"
        for number in range(sections):
            yield f"\\section{{{' '.join(rng.choices(words, k=3))}}}\n{' '.join(rng.choices(words, k=160))}.\n\n"
            yield f"\\[ \\sum_{{i=1}}^{{{number + 2}}} \\frac{{x_i^{{{number % 9}}}}}{{\\sqrt{{1 + y_i}}}} = \\int_0^1 f_{{{number}}}(t)\\,dt \\]\n"
            yield "\\begin{itemize}\n" + "".join(f"\\item {' '.join(rng.choices(words, k=15))}\n" for _ in range(4))
            yield "\\end{itemize}\n"
        yield "\\end{document}\n"

    return written(parts)


def markdown(paragraphs: int) -> Maker:
    def parts(rng: random.Random) -> Iterator[str]:
        words = vocabulary(rng, 3000)
        for number in range(paragraphs):
            yield f"## {' '.join(rng.choices(words, k=3))}\n\n" if number % 6 == 0 else ""
            yield " ".join(f"*{w}*" if i % 17 == 0 else w for i, w in enumerate(rng.choices(words, k=90))) + ".\n\n"
            yield "".join(f"- {' '.join(rng.choices(words, k=6))}\n" for _ in range(3)) + "\n" if number % 4 == 0 else ""

    return written(parts)


def beam(cells: int) -> Maker:
    """CalculiX: a beam of bricks, held at one end and loaded at the other."""

    def parts(_: random.Random) -> Iterator[str]:
        side, long = 5, cells

        def node(x: int, y: int, z: int) -> int:
            return 1 + x + (long + 1) * (y + (side + 1) * z)

        yield "*NODE, NSET=ALL\n"
        for z in range(side + 1):
            for y in range(side + 1):
                yield "".join(f"{node(x, y, z)}, {x * 0.5}, {y * 0.5}, {z * 0.5}\n" for x in range(long + 1))
        yield "*ELEMENT, TYPE=C3D8, ELSET=BODY\n"
        number = 0
        for z in range(side):
            for y in range(side):
                for x in range(long):
                    number += 1
                    corners = [(x, y, z), (x + 1, y, z), (x + 1, y + 1, z), (x, y + 1, z)]
                    corners += [(i, j, k + 1) for i, j, k in corners]
                    yield f"{number}, " + ", ".join(str(node(*corner)) for corner in corners) + "\n"
        held = [node(0, y, z) for y in range(side + 1) for z in range(side + 1)]
        yield "*NSET, NSET=HELD\n" + "".join(f"{n},\n" for n in held)
        yield "*MATERIAL, NAME=STEEL\n*ELASTIC\n210000., 0.3\n*SOLID SECTION, ELSET=BODY, MATERIAL=STEEL\n*BOUNDARY\nHELD, 1, 3\n"
        yield "*STEP, NLGEOM\n*STATIC\n0.25, 1.\n*CLOAD\n"
        yield "".join(f"{node(long, y, side)}, 3, -20.\n" for y in range(side + 1))
        yield "*NODE PRINT, NSET=HELD\nRF\n*END STEP\n"

    return written(parts)


def tiny_repository(rng: random.Random) -> Iterator[str]:
    """A stream for `git fast-import`: one branch, many versions of some texts."""
    words = vocabulary(rng, 4000)
    files = [[" ".join(rng.choices(words, k=9)) for _ in range(300)] for _ in range(40)]
    mark = 0
    for commit in range(500):
        changed = rng.sample(range(40), 4)
        yield f"commit refs/heads/main\nmark :{commit + 1}\ncommitter N <n@example.org> {1700000000 + commit} +0000\n"
        yield f"data 4\nstep\n{f'from :{commit}' if commit else ''}\n"
        for number in changed:
            files[number][rng.randrange(300)] = " ".join(rng.choices(words, k=9))
            content = "\n".join(files[number]) + "\n"
            yield f"M 100644 inline file{number}.txt\ndata {len(content)}\n{content}\n"
        mark += 1


def polytope(dimension: int, planes: int) -> Maker:
    """lrs: half-spaces around the origin, b + a x >= 0."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield f"polytope\nH-representation\nbegin\n{planes} {dimension + 1} rational\n"
        for _ in range(planes):
            yield "1000 " + " ".join(str(rng.randint(-99, 99)) for _ in range(dimension)) + "\n"
        yield "end\n"

    return written(parts)


def passwords(rng: random.Random) -> Iterator[str]:
    yield "".join(f"{word}{rng.randrange(100)}\n" for word in vocabulary(rng, 30_000))


MAKERS: dict[str, Maker] = {
    "text-60m": prose(60_000_000),
    "text-20m": prose(20_000_000),
    "text-6m": prose(6_000_000),
    "text-1m": prose(1_000_000),
    "text-300k": prose(300_000),
    "secret": written(lambda _: iter(["secret"])),
    "source.c": written(source),
    "source.f90": fortran(120),
    "source.pas": pascal(6000),
    "source.asm": assembly(60_000),
    "source.y": grammar(60),
    "sound.wav": lambda rng, path: sound(rng, path, 40),
    "picture.ppm": lambda rng, path: picture(rng, path, 1200, 900),
    "genome.fa": lambda rng, path: genome_and_reads(rng, path.parent, 1_000_000, 40_000),
    "reads.fq": lambda rng, path: genome_and_reads(rng, path.parent, 1_000_000, 40_000),
    "balls.dat": scene,
    "argon.gro": lambda rng, path: liquid(rng, path.parent, 12),
    "argon.top": lambda rng, path: liquid(rng, path.parent, 12),
    "argon.mdp": lambda rng, path: liquid(rng, path.parent, 12),
    "proteins.fa": fasta(60, 350, RESIDUES, 0.08, 0.01),
    "genes.fa": fasta(50, 700, NUCLEOTIDES, 0.08, 0.01),
    "families.fa": families(600, 6, 600),
    "aligned.fa": written(tested_alignment),
    "random.cnf": satisfiable(230, 4.26),
    "harder.cnf": satisfiable(270, 4.26),
    "pigeons.cnf": pigeons(9),
    "factors.smt2": factoring(18, 241_117 * 250_007),
    "shop.smt2": differences(7, 6),
    "facilities.lp": written(facilities),
    "knapsack.lp": knapsacks(40, 6),
    "transport.mps": transport(60, 250),
    "contacts.rec": contacts(30_000),
    "sales.xml": sales(120_000),
    "objects.json": objects(400_000),
    "values.tsv": values(2_000_000),
    "points.dat": written(noisy_wave),
    "labelled.txt": labelled(4000, 20),
    "line.data": written(line_data),
    "graph.dot": network(500, 900),
    "molecules.smi": smiles(60),
    "water.mop": water(12),
    "account.ms": manuscript(2500),
    "article.tex": article(700),
    "account.md": markdown(4000),
    "beam.inp": beam(60),
    "cube.ine": polytope(6, 40),
    "queries.sql": written(queries),
    "history.txt": written(tiny_repository),
    "words.lst": written(passwords),
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
