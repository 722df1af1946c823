// SPDX-License-Identifier: Apache-2.0
// Calls as the only countable instruction of their block; code that looks at return addresses.
// Usage: callpop [ROUNDS]
#include "site.h"

uint64_t callpop_pc(void), callpop_fib(uint64_t n), callpop_tail(uint64_t n);
extern const char callpop_here[];

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 20000), wrong = 0, sum = 0;
    enum { N = 20, INNER = 10945 }; // fib(N + 1) - 1 calls that call again
    for (uint64_t round = 0; round < rounds; round++) {
        wrong += callpop_pc() != (uint64_t)(uintptr_t)callpop_here;
        sum += callpop_tail(N + 1) ^ round;
    }
    printf("callpop %llu wrong %llu\n", (unsigned long long)sum, (unsigned long long)wrong);
    print_count("site_get_pc", rounds);
    print_count("site_tail", rounds);
    print_count("site_fib_first", rounds * INNER);
    print_count("site_fib_second", rounds * INNER);
    return wrong != 0;
}
