#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the quickstart's input: alignments of protein families and a sequence database with members planted.

Everything follows from one seed, through the standard library alone, so two machines search the same data.
A family is an ancestor of random residues at natural frequencies; its members have residues replaced or lost.
The database holds background sequences, close and remote members, and low-complexity repeats: together they
exercise every stage of hmmsearch's pipeline (MSV, bias, Viterbi and Forward filters, domain definition), each
for a different share of the time.

Usage: make_hmmer_data.py FOLDER [--seed N] [--sequences N]
Writes FOLDER/families.sto, to be turned into profiles by `hmmbuild --amino`, and FOLDER/database.fa.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

# Residue frequencies in per mille, close to those of UniProtKB/Swiss-Prot.
FREQUENCIES = {
    "A": 83, "R": 55, "N": 41, "D": 55, "C": 14, "Q": 39, "E": 67, "G": 71, "H": 23, "I": 59,
    "L": 97, "K": 58, "M": 24, "F": 39, "P": 47, "S": 66, "T": 53, "W": 11, "Y": 29, "V": 69,
}  # fmt: skip
RESIDUES = "".join(FREQUENCIES)
FAMILY_LENGTHS = (70, 1100, 160, 420, 40, 700, 250, 1500, 120, 300, 950, 55, 560, 210, 1250, 90, 360, 800)
"""Consensus length of each family, in residues: the cost of a filter grows with it."""
MEMBERS_PER_FAMILY = 24


def residue_table() -> bytes:
    """256 residues at natural frequencies: translates random bytes into background sequence."""
    total, table, seen = sum(FREQUENCIES.values()), "", 0
    for residue, weight in FREQUENCIES.items():
        seen += weight
        table += residue * (round(256 * seen / total) - len(table))
    return table.encode()


def background(rng: random.Random, length: int, table: bytes) -> str:
    """A random sequence of `length` residues."""
    return rng.randbytes(length).translate(table).decode()


def member(rng: random.Random, ancestor: str, identity: float) -> str:
    """A descendant aligned to `ancestor`: the share `identity` is kept, the rest replaced or lost ('-')."""
    return "".join(
        residue if (draw := rng.random()) < identity else "-" if draw > 0.985 else rng.choice(RESIDUES)
        for residue in ancestor
    )


def family(rng: random.Random, number: int, ancestor: str) -> Iterator[str]:
    """One family's alignment in Stockholm format."""
    yield f"# STOCKHOLM 1.0\n#=GF ID family{number}\n"
    for row in range(MEMBERS_PER_FAMILY):
        yield f"member{row:<6} {member(rng, ancestor, 0.7)}\n"
    yield "//\n"


def database(rng: random.Random, ancestors: list[str], sequences: int) -> Iterator[str]:
    """FASTA records: background, with planted members in the later two thirds and repeats in the last one."""
    table = residue_table()
    for number in range(sequences):
        place = number / sequences
        text = background(rng, max(40, int(rng.gauss(350, 150))), table)
        kind = "background"
        if place > 1 / 3 and rng.random() < 0.08:
            ancestor = rng.choice(ancestors)
            # Remote members pass the first filters and fail later; close ones reach domain definition.
            identity = rng.choice((0.28, 0.4, 0.65))
            planted = member(rng, ancestor, identity).replace("-", "")
            text = text[: len(text) // 2] + planted + text[len(text) // 2 :]
            kind = f"planted {identity}"
        elif place > 2 / 3 and rng.random() < 0.02:
            unit = background(rng, rng.randint(3, 9), table)
            text = unit * (len(text) // len(unit))
            kind = "repeat"
        yield f">seq{number:06d} {kind}\n{text}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2011)
    parser.add_argument("--sequences", type=int, default=60000)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    table = residue_table()
    ancestors = [background(rng, length, table) for length in FAMILY_LENGTHS]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with (arguments.folder / "families.sto").open("w") as file:
        for number, ancestor in enumerate(ancestors):
            file.writelines(family(rng, number, ancestor))
    with (arguments.folder / "database.fa").open("w") as file:
        file.writelines(database(rng, ancestors, arguments.sequences))


if __name__ == "__main__":
    main()
