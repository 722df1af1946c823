# SPDX-License-Identifier: Apache-2.0
"""Small objects, recursion and dictionaries: orbits of bodies, queens on a board, the game of life."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass
class Body:
    """A point with a mass in the plane."""

    x: float
    y: float
    vx: float
    vy: float
    mass: float


def orbits(count: int, turns: int) -> float:
    """Sum of the x of all bodies after so many turns of mutual pull."""
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
    return sum(body.x for body in bodies)


def queens(size: int, row: int = 0, columns: int = 0, left: int = 0, right: int = 0) -> int:
    """Ways to place a queen in each row so that none attacks another."""
    if row == size:
        return 1
    free, found = ~(columns | left | right) & ((1 << size) - 1), 0
    while free:
        bit = free & -free
        free ^= bit
        found += queens(size, row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1)
    return found


def life(size: int, turns: int) -> int:
    """Living cells after so many turns, from a start that looks random."""
    cells = {x for x in range(size * size) if x * 2654435761 % 1000 < 300}
    for _ in range(turns):
        near: Counter[int] = Counter()
        for cell in cells:
            for step in (-size - 1, -size, -size + 1, -1, 1, size - 1, size, size + 1):
                near[cell + step] += 1
        cells = {cell for cell, n in near.items() if n == 3 or (n == 2 and cell in cells)}
    return len(cells)


print(orbits(20, 48000), queens(12), life(100, 6000))
