#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the inputs of the packaged programs that scripts/bench measures.

Everything follows from one seed, through the standard library alone, so two machines compute on the same data.
Sizes are chosen for 4 to 10 seconds of each program on a machine of 2023.

Usage: make_bench_data.py FOLDER [--seed N]
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from seeds import folder_and_seeds

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
NUCLEOTIDES = "ACGT"
RESIDUES = "ARNDCQEGHILKMFPSTWYV"


def vocabulary(rng: random.Random, size: int) -> list[str]:
    """Words of two to twelve letters, common letters first, as in a natural language."""
    weights = [1 / (1 + place) for place in range(len(LETTERS))]
    return ["".join(rng.choices(LETTERS, weights, k=rng.randint(2, 12))) for _ in range(size)]


def text(rng: random.Random, size: int) -> Iterator[str]:
    """About `size` bytes of lines: prose of a Zipf-like vocabulary, tables of numbers, and repeats of both."""
    words = vocabulary(rng, 20_000)
    weights = [1 / (1 + place) for place in range(len(words))]
    kept = [""]
    made = 0
    while made < size:
        kind = rng.random()
        if kind < 0.6:
            paragraph = " ".join(rng.choices(words, weights, k=120)) + ".\n"
        elif kind < 0.8:
            paragraph = "".join(f"{rng.randrange(10**6):>8} {rng.gauss(0, 1):.6f}\n" for _ in range(40))
        else:
            paragraph = rng.choice(kept)
        kept.append(paragraph)
        del kept[:-500]
        made += len(paragraph)
        yield paragraph


def mutated(rng: random.Random, sequence: str, letters: str, rate: float, gaps: float = 0.0) -> str:
    """A descendant of `sequence`: each letter replaced with probability `rate`, lost or doubled with `gaps`."""
    made = []
    for letter in sequence:
        draw = rng.random()
        if draw < gaps:
            continue
        made.append(rng.choice(letters) if draw < gaps + rate else letter)
        if draw > 1 - gaps:
            made.append(rng.choice(letters))
    return "".join(made)


def descendants(rng: random.Random, count: int, length: int, letters: str, rate: float, gaps: float) -> list[str]:
    """`count` sequences at the leaves of a random tree of descent."""
    leaves = ["".join(rng.choices(letters, k=length))]
    while len(leaves) < count:
        parent = leaves.pop(rng.randrange(len(leaves)))
        leaves += [mutated(rng, parent, letters, rate, gaps) for _ in range(2)]
    return leaves


def proteins(rng: random.Random) -> Iterator[str]:
    """FASTA for an aligner."""
    for number, sequence in enumerate(descendants(rng, 90, 420, RESIDUES, 0.08, 0.01)):
        yield f">protein{number}\n{sequence}\n"


def alignment(rng: random.Random) -> Iterator[str]:
    """PHYLIP for a tree search: aligned already, so nothing is lost."""
    taxa, length = 30, 800
    yield f"{taxa} {length}\n"
    for number, sequence in enumerate(descendants(rng, taxa, length, NUCLEOTIDES, 0.05, 0.0)):
        yield f"taxon{number:<6}{sequence}\n"


def satisfiability(rng: random.Random) -> Iterator[str]:
    """DIMACS: random 3-SAT where it is hardest, 4.26 clauses a variable."""
    variables = 250
    clauses = round(4.26 * variables)
    yield f"p cnf {variables} {clauses}\n"
    for _ in range(clauses):
        chosen = rng.sample(range(1, variables + 1), 3)
        yield " ".join(str(v if rng.random() < 0.5 else -v) for v in chosen) + " 0\n"


def facilities(rng: random.Random) -> Iterator[str]:
    """An LP file: which depots to open, and who is served from where."""
    depots, customers = 42, 150
    at = [(rng.random(), rng.random()) for _ in range(depots + customers)]
    cost = {
        (d, c): round(100 * ((at[d][0] - at[depots + c][0]) ** 2 + (at[d][1] - at[depots + c][1]) ** 2) ** 0.5, 2)
        for d in range(depots)
        for c in range(customers)
    }
    yield "Minimize\n total: " + "\n + ".join(
        [f"{rng.randint(60, 120)} open{d}" for d in range(depots)]
        + [f"{value} serve{d}x{c}" for (d, c), value in cost.items()]
    )
    yield "\nSubject To\n"
    for c in range(customers):
        yield f" customer{c}: " + " + ".join(f"serve{d}x{c}" for d in range(depots)) + " = 1\n"
    for d in range(depots):
        for c in range(customers):
            yield f" link{d}x{c}: serve{d}x{c} - open{d} <= 0\n"
        yield f" room{d}: " + " + ".join(f"serve{d}x{c}" for c in range(customers)) + f" - 7 open{d} <= 0\n"
    yield "Binary\n" + "\n".join(f" open{d}" for d in range(depots)) + "\nEnd\n"


def queries(rng: random.Random) -> Iterator[str]:
    """SQL for a database in memory: filling, indexing, joining, grouping."""
    yield "PRAGMA journal_mode=off;\nPRAGMA temp_store=memory;\n"
    yield "CREATE TABLE sale(id INTEGER PRIMARY KEY, shop INT, item INT, price REAL, note TEXT);\n"
    yield "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, grp INT);\nBEGIN;\n"
    for number in range(5000):
        yield f"INSERT INTO item VALUES({number}, 'item {rng.randrange(10**6)}', {number % 37});\n"
    for _ in range(600):
        rows = ",".join(
            f"(NULL,{rng.randrange(200)},{rng.randrange(5000)},{rng.random() * 99:.2f},'n{rng.randrange(10**5)}')"
            for _ in range(200)
        )
        yield f"INSERT INTO sale VALUES{rows};\n"
    yield "COMMIT;\n"
    for turn in range(15):
        yield (
            "SELECT grp, count(*), avg(price) FROM sale JOIN item ON item.id = sale.item GROUP BY grp ORDER BY 3;\n"
            f"SELECT count(*) FROM sale WHERE note LIKE '%{turn}7%';\n"
            "SELECT shop, item, sum(price) AS total FROM sale GROUP BY shop, item ORDER BY total DESC LIMIT 5;\n"
            f"CREATE INDEX by_note{turn} ON sale(note, price);\n"
            f"SELECT a.note, count(*) FROM sale a JOIN sale b ON a.note = b.note AND a.id < b.id "
            f"WHERE a.shop < {40 + turn} GROUP BY a.note ORDER BY 2 DESC, 1 LIMIT 3;\n"
            f"UPDATE sale SET price = price * 1.01 WHERE shop % 7 = {turn};\n"
        )


def source(rng: random.Random, functions: int = 500) -> Iterator[str]:
    """Preprocessed C for a compiler: loops, switches, calls."""
    yield "extern double data[4096];\nextern int table[4096];\n"
    for number in range(functions):
        yield f"static int step{number}(int a, int b, double *x)\n{{\n  int i, s = a; double d = x[{number % 64}];\n"
        for part in range(rng.randint(3, 9)):
            kind = rng.randrange(4)
            n, m = rng.randint(3, 200), rng.randint(1, 4000)
            if kind == 0:
                yield (
                    f"  for (i = 0; i < {n}; i++) "
                    f"{{ s += table[(i * {m} + b) & 4095] ^ (s << {part}); d += x[i] * {m}.5; }}\n"
                )
            elif kind == 1:
                yield (
                    f"  switch (s % {rng.randint(4, 9)}) {{ case 0: s += {m}; break; case 1: s ^= b; break; "
                    f"case 2: d *= 1.5; break; case 3: s = b - {n}; break; default: s--; }}\n"
                )
            elif kind == 2:
                yield (
                    f"  if (d > {m}.0 && (s & {n})) "
                    f"{{ d -= x[s & 63]; table[s & 4095] = a + {n}; }} else b += s / {n};\n"
                )
            else:
                yield f"  while (b > {n}) {{ b -= {n}; x[b & 63] = d + b; s = (s * {m | 1}) >> 1; }}\n"
        if number:
            yield f"  s += step{rng.randrange(max(0, number - 30), number)}(b, s, x);\n"
        yield "  x[1] = d;\n  return s + b;\n}\n"
    yield "int work(int n)\n{\n  int s = 0;\n"
    for number in range(functions):
        yield f"  s += step{number}(n, s, data);\n"
    yield "  return s;\n}\n"


PERL = r"""
use strict; use warnings;
my (%count, %after, $previous, $digits);
open my $in, '<', $ARGV[0] or die $!;
while (my $line = <$in>) {
    $digits += length $1 while $line =~ /(\d+)/g;
    for my $word ($line =~ /([a-z]+)/g) {
        $count{$word}++;
        $after{"$previous $word"}++ if defined $previous;
        $previous = $word;
    }
}
my @common = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
my @pairs = sort { $after{$b} <=> $after{$a} || $a cmp $b } keys %after;
my $total = 0;
for my $i (0 .. $#pairs) { $total = ($total * 31 + length($pairs[$i]) * $i) % 1000003; }
print "$digits @common[0 .. 9] $pairs[0] $total\n";
"""

PYTHON = r"""
def queens(n, row=0, columns=0, left=0, right=0):
    if row == n:
        return 1
    free, found = ~(columns | left | right) & ((1 << n) - 1), 0
    while free:
        bit = free & -free
        free ^= bit
        found += queens(n, row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1)
    return found

def sieve(n):
    flags = bytearray([1]) * n
    for i in range(2, int(n ** 0.5) + 1):
        if flags[i]:
            flags[i * i :: i] = bytes(len(range(i * i, n, i)))
    return sum(flags) - 2

def words(path):
    seen, longest = {}, {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                seen[word] = seen.get(word, 0) + 1
                longest.setdefault(len(word), set()).add(word)
    return sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:5], {k: len(v) for k, v in longest.items()}

def life(size, turns):
    cells = {x for x in range(size * size) if x * 2654435761 % 1000 < 300}
    for _ in range(turns):
        near = {}
        for cell in cells:
            for step in (-size - 1, -size, -size + 1, -1, 1, size - 1, size, size + 1):
                near[cell + step] = near.get(cell + step, 0) + 1
        cells = {cell for cell, n in near.items() if n == 3 or (n == 2 and cell in cells)}
    return len(cells)

class Body:
    def __init__(self, x, y, vx, vy, mass):
        self.x, self.y, self.vx, self.vy, self.mass = x, y, vx, vy, mass

def orbits(count, turns):
    bodies = [Body(i * 1.7 % 5, i * 2.3 % 7, 0.01 * i, -0.02 * i, 1.0 + i % 3) for i in range(count)]
    for _ in range(turns):
        for a in bodies:
            for b in bodies:
                dx, dy = b.x - a.x, b.y - a.y
                pull = 1e-4 * b.mass / (dx * dx + dy * dy + 0.1)
                a.vx += dx * pull
                a.vy += dy * pull
        for a in bodies:
            a.x += a.vx
            a.y += a.vy
    return sum(b.x for b in bodies)

def join_and_sort(lines):
    made = [f"{i * 7919 % 100003:06d}:{i % 977}" for i in range(lines)]
    made.sort()
    return len("".join(made).replace("00", "-").split("-"))

import sys
print(orbits(20, 12000), join_and_sort(1_500_000), queens(12))
print(sieve(12_000_000), words(sys.argv[1])[0][0], life(200, 40))
"""

BC = "scale = 3000\n4 * a(1/5) * 4 - 4 * a(1/239)\nscale = 900\nfor (i = 1; i < 24; i++) e(1/i) * l(1 + 1/i)\n"


def main() -> None:
    folder, seeded = folder_and_seeds(__doc__)

    def write(name: str, parts: Iterator[str]) -> None:
        with (folder / name).open("w") as file:
            file.writelines(parts)

    write("large.txt", text(seeded("large.txt"), 60_000_000))
    write("small.txt", text(seeded("small.txt"), 12_000_000))
    write("proteins.fa", proteins(seeded("proteins.fa")))
    write("alignment.phy", alignment(seeded("alignment.phy")))
    write("random.cnf", satisfiability(seeded("random.cnf")))
    write("facilities.lp", facilities(seeded("facilities.lp")))
    write("queries.sql", queries(seeded("queries.sql")))
    write("source.i", source(seeded("source.i")))
    write("words.pl", iter(PERL))
    write("mixture.py", iter(PYTHON))
    write("digits.bc", iter(BC))


if __name__ == "__main__":
    main()
