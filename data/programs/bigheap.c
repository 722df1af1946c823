// SPDX-License-Identifier: Apache-2.0
// A table of records that fills most of the memory, of which little is used at a time: look-ups in a hot window that
// moves, reports over a stripe of records, and arithmetic that needs none of them take turns.
// Usage: bigheap [MEGABYTES [ROUNDS]]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t key, uses, sum;
    char name[40];
} Record;

enum { WINDOW = 1 << 14, STRIPE = 1 << 13, LOOKUPS = 12000000, PASSES = 400, TERMS = 100000000 };

static uint64_t next_number(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static Record *make_table(uint64_t count)
{
    Record *table = malloc(count * sizeof *table);
    uint64_t state = 88172645463325252u;
    if (!table) {
        perror("bigheap");
        exit(1);
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t key = next_number(&state);
        table[i].key = key;
        table[i].uses = table[i].sum = 0;
        // Hexadecimal by hand: the digits compress as real tables do, and snprintf would take most of the run.
        memcpy(table[i].name, "record number ", 14);
        for (int digit = 0; digit < 16; digit++)
            table[i].name[14 + digit] = "0123456789abcdef"[key >> (60 - 4 * digit) & 15];
        memset(table[i].name + 30, 0, 10);
    }
    return table;
}

static uint64_t look_up(Record *window, uint64_t *state)
{
    uint64_t found = 0;
    for (int i = 0; i < LOOKUPS; i++) {
        uint64_t number = next_number(state);
        Record *record = &window[number % WINDOW];
        record->uses++;
        found += (record->key ^ number) % 3;
    }
    return found;
}

static uint64_t report(Record *stripe)
{
    uint64_t hash = 14695981039346656037u;
    for (int pass = 0; pass < PASSES; pass++)
        for (uint64_t i = 0; i < STRIPE; i++) {
            for (int c = 0; c < 32; c++)
                hash = (hash ^ (uint8_t)stripe[i].name[c]) * 1099511628211u;
            stripe[i].sum += hash >> 60;
        }
    return hash;
}

static double series(void)
{
    double sum = 0;
    for (int i = 0; i < TERMS; i++)
        sum += 1.0 / (1.0 + 0.5 * i);
    return sum;
}

int main(int argc, char **argv)
{
    long megabytes = argc > 1 ? atol(argv[1]) : 600, rounds = argc > 2 ? atol(argv[2]) : 24;
    if (megabytes < 4 || rounds < 1) {
        fprintf(stderr, "usage: %s [MEGABYTES [ROUNDS]]    at least 4 and 1\n", argv[0]);
        return 2;
    }
    uint64_t count = (uint64_t)megabytes * (1 << 20) / sizeof(Record), state = 1, total = 0;
    Record *table = make_table(count);
    double sum = 0;
    for (long round = 0; round < rounds; round++) {
        total += look_up(table + next_number(&state) % (count - WINDOW), &state);
        total += look_up(table + next_number(&state) % (count - WINDOW), &state);
        total ^= report(table + next_number(&state) % (count - STRIPE));
        sum += series();
    }
    printf("bigheap %llu %016llx %.6f\n", (unsigned long long)count, (unsigned long long)total, sum);
    free(table);
    return 0;
}
