// SPDX-License-Identifier: Apache-2.0
// Pointer chase: build one random cycle through 64 MB, then follow it, every load waiting
// for the one before.
// Usage: chase [MILLION_STEPS]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 8 << 20 };

static uint64_t next_number(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

// Sattolo's shuffle: the permutation is a single cycle, so no walk is ever short.
static void build_cycle(uint64_t *next)
{
    for (uint64_t i = 0; i < CELLS; i++)
        next[i] = i;
    for (uint64_t i = CELLS - 1; i > 0; i--) {
        uint64_t j = next_number() % i, kept = next[i];
        next[i] = next[j];
        next[j] = kept;
    }
}

static uint64_t follow(const uint64_t *next, uint64_t at, long steps, uint64_t *sum)
{
    uint64_t total = *sum;
    for (long i = 0; i < steps; i++) {
        at = next[at];
        total += at ^ (uint64_t)i;
    }
    *sum = total;
    return at;
}

int main(int argc, char **argv)
{
    long millions = argc > 1 ? atol(argv[1]) : 80;
    if (millions < 1) {
        fprintf(stderr, "usage: %s [MILLION_STEPS]\n", argv[0]);
        return 2;
    }
    uint64_t *next = malloc(CELLS * sizeof *next), at = 0, sum = 0;
    if (!next) {
        perror("chase");
        return 2;
    }
    build_cycle(next);
    for (long million = 0; million < millions; million++)
        at = follow(next, at, 1000000, &sum);
    printf("chase %ld %llu %016llx\n", millions, (unsigned long long)at, (unsigned long long)sum);
    free(next);
    return 0;
}
