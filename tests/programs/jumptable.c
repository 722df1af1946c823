// SPDX-License-Identifier: Apache-2.0
// Indirect jumps to the heads of blocks (computed goto, switch tables) and into what a linear
// sweep takes for the inside of one (jumptable.S).
// Usage: jumptable [HUNDRED_ROUNDS]
#include "site.h"

uint64_t ladder(uint64_t rung, uint64_t value);

enum { RUNGS = 16, LENGTH = 1000, OPERATIONS = 6 };
static uint8_t code[LENGTH + 1];
static uint64_t executed[OPERATIONS], cases[8], rungs[RUNGS];

__attribute__((noipa)) static uint64_t interpret(const uint8_t *at, uint64_t value)
{
    static const void *const operations[OPERATIONS + 1] = {&&add,    &&twist, &&multiply, &&invert,
                                                           &&rotate, &&spin,  &&stop};
#define NEXT goto *operations[*at++]
    NEXT;
add:
    SITE(site_goto_0);
    value += 0x01234567;
    NEXT;
twist:
    SITE(site_goto_1);
    value ^= value >> 17;
    NEXT;
multiply:
    SITE(site_goto_2);
    value *= 0x100000001b3u;
    NEXT;
invert:
    SITE(site_goto_3);
    value = ~value;
    NEXT;
rotate:
    SITE(site_goto_4);
    value = value << 13 | value >> 51;
    NEXT;
spin:
    SITE(site_goto_5);
    for (uint64_t i = value & 3; i; i--)
        value = value * 3 + i;
    NEXT;
stop:
    return value;
}

__attribute__((noipa)) static uint64_t choose(unsigned which, uint64_t value)
{
    switch (which) {
    case 0: SITE(site_case_0); return value + 0x1111;
    case 1: SITE(site_case_1); return value ^ 0x2222;
    case 2: SITE(site_case_2); return value * 0x3333;
    case 3: SITE(site_case_3); return value - 0x4444;
    case 4: SITE(site_case_4); return value << 3 | 5;
    case 5: SITE(site_case_5); return value >> 3;
    case 6: SITE(site_case_6); return ~value;
    default: SITE(site_case_7); return value | 0x8888;
    }
}

int main(int argc, char **argv)
{
    long rounds = size_argument(argc, argv, 500) * 100;
    uint64_t sum = 1;
    uint32_t seed = 7;
    for (int i = 0; i < LENGTH; i++) {
        seed = seed * 1664525u + 1013904223u;
        code[i] = (uint8_t)((seed >> 16) % OPERATIONS);
        executed[code[i]] += (uint64_t)rounds;
    }
    code[LENGTH] = OPERATIONS;
    for (long round = 0; round < rounds; round++) {
        sum = interpret(code, sum);
        for (int i = 0; i < 100; i++) {
            seed = seed * 1664525u + 1013904223u;
            unsigned which = seed >> 29, rung = seed >> 20 & (RUNGS - 1);
            sum = choose(which, sum);
            cases[which]++;
            sum = ladder(rung, sum);
            rungs[rung]++;
        }
    }
    printf("jumptable %016llx\n", (unsigned long long)sum);
    for (int i = 0; i < OPERATIONS; i++)
        printf("count site_goto_%d %llu\n", i, (unsigned long long)executed[i]);
    for (int i = 0; i < 8; i++)
        printf("count site_case_%d %llu\n", i, (unsigned long long)cases[i]);
    uint64_t climbed = 0;
    for (int i = 0; i < RUNGS; i++)
        printf("count ladder_%d %llu\n", i, (unsigned long long)(climbed += rungs[i]));
    return 0;
}
