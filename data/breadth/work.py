"""Words of a text, queens on a board, bodies that pull, and long integers."""

import sys


def words(path):
    seen = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                seen[word] = seen.get(word, 0) + 1
    return sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:3]


def queens(n, row=0, columns=0, left=0, right=0):
    if row == n:
        return 1
    free, found = ~(columns | left | right) & ((1 << n) - 1), 0
    while free:
        bit = free & -free
        free ^= bit
        found += queens(n, row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1)
    return found


def bodies(count, turns):
    at = [[i * 1.7 % 5, i * 2.3 % 7, 0.01 * i, -0.02 * i] for i in range(count)]
    for _ in range(turns):
        for a in at:
            for b in at:
                dx, dy = b[0] - a[0], b[1] - a[1]
                pull = 1e-4 / (dx * dx + dy * dy + 0.1)
                a[2] += dx * pull
                a[3] += dy * pull
        for a in at:
            a[0] += a[2]
            a[1] += a[3]
    return at[0][0]


def digits(count):
    value = 1
    for i in range(1, count):
        value = value * (2 * i + 1) // 2 + i
    return value.bit_length()


print(words(sys.argv[1]), queens(10), bodies(16, 12000), digits(20000))
