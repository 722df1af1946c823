# SPDX-License-Identifier: Apache-2.0
"""Write problems for solvers: see make_breadth_data.py."""

from __future__ import annotations

import random
from collections.abc import Iterator

from breadth_sources import Maker, written


def satisfiable(variables: int, ratio: float) -> Maker:
    """DIMACS: random 3-SAT with `ratio` clauses a variable."""

    def parts(rng: random.Random) -> Iterator[str]:
        clauses = round(ratio * variables)
        yield f"p cnf {variables} {clauses}\n"
        for _ in range(clauses):
            chosen = rng.sample(range(1, variables + 1), 3)
            yield " ".join(str(v if rng.random() < 0.5 else -v) for v in chosen) + " 0\n"

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


def differences(jobs: int, machines: int, times: int) -> Maker:
    """SMT-LIB, linear reals: job shops that may end in time, one after the other."""

    def shop(rng: random.Random) -> Iterator[str]:
        length = {(j, m): rng.randint(2, 20) for j in range(jobs) for m in range(machines)}
        order = {j: rng.sample(range(machines), machines) for j in range(jobs)}
        yield "".join(f"(declare-fun s{j}x{m} () Real)\n(assert (>= s{j}x{m} 0))\n" for j, m in length)
        for j in range(jobs):
            for before, after in zip(order[j], order[j][1:], strict=False):
                yield f"(assert (>= (- s{j}x{after} s{j}x{before}) {length[j, before]}))\n"
        for m, j in ((m, j) for m in range(machines) for j in range(jobs)):
            for k in range(j):
                first = f"(>= (- s{j}x{m} s{k}x{m}) {length[k, m]})"
                yield f"(assert (or {first} (>= (- s{k}x{m} s{j}x{m}) {length[j, m]})))\n"
        bound = max(sum(length[j, m] for j in range(jobs)) for m in range(machines))
        yield "".join(f"(assert (<= (+ s{j}x{m} {length[j, m]}) {bound}))\n" for j, m in length)

    def parts(rng: random.Random) -> Iterator[str]:
        yield "(set-logic QF_LRA)\n"
        for _ in range(times):
            yield "(push 1)\n"
            yield from shop(rng)
            yield "(check-sat)\n(pop 1)\n"

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
        yield "*MATERIAL, NAME=STEEL\n*ELASTIC\n210000., 0.3\n"
        yield "*SOLID SECTION, ELSET=BODY, MATERIAL=STEEL\n*BOUNDARY\nHELD, 1, 3\n"
        yield "*STEP, NLGEOM\n*STATIC\n0.25, 1.\n*CLOAD\n"
        yield "".join(f"{node(long, y, side)}, 3, -20.\n" for y in range(side + 1))
        yield "*NODE PRINT, NSET=HELD\nRF\n*END STEP\n"

    return written(parts)


def polytope(dimension: int, planes: int) -> Maker:
    """lrs: half-spaces around the origin, b + a x >= 0."""

    def parts(rng: random.Random) -> Iterator[str]:
        yield f"polytope\nH-representation\nbegin\n{planes} {dimension + 1} rational\n"
        for _ in range(planes):
            yield "1000 " + " ".join(str(rng.randint(-99, 99)) for _ in range(dimension)) + "\n"
        yield "end\n"

    return written(parts)
