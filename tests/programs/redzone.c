// SPDX-License-Identifier: Apache-2.0
// Live data in the red zone across instructions of five bytes and more.
// Usage: redzone [THOUSAND_ROUNDS]
#include "site.h"

uint64_t redzone_mix(uint64_t rounds, uint64_t seed);

static uint64_t reference(uint64_t rounds, uint64_t seed)
{
    uint64_t slot[17];
    for (int i = 1; i <= 16; i++, seed = seed * 5 + 0x1234567)
        slot[i] = seed;
    while (rounds--) {
        uint64_t mixed = ((0x9e3779b97f4a7c15u + slot[16]) ^ slot[1]) * 0x5bd1e995u;
        for (int i = 16; i > 1; i--)
            slot[i] = slot[i - 1];
        slot[1] = mixed;
    }
    uint64_t sum = 0;
    for (int i = 1; i <= 16; i++)
        sum = (sum << 5 | sum >> 59) ^ slot[i];
    return sum;
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 1000) * 1000, sum = 0, expected = 0;
    enum { CALLS = 10 };
    for (uint64_t seed = 1; seed <= CALLS; seed++) {
        sum = sum * 31 + redzone_mix(rounds, seed);
        expected = expected * 31 + reference(rounds, seed);
    }
    printf("redzone %016llx %s\n", (unsigned long long)sum, sum == expected ? "ok" : "WRONG");
    print_count("site_redzone_long", rounds * CALLS);
    print_count("site_redzone_short", rounds * CALLS);
    return sum != expected;
}
