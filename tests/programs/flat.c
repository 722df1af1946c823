// SPDX-License-Identifier: Apache-2.0
// Long stretches with a single, hot site, and long stretches with none.
// Usage: flat [MILLION_ROUNDS] [bare]
#include "site.h"

uint64_t flat_loop(uint64_t rounds), bare_loop(uint64_t rounds);

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 1500) * 1000000;
    uint64_t flat = flat_loop(rounds), bare = argc > 2 ? bare_loop(rounds) : 0;
    printf("flat %016llx %016llx\n", (unsigned long long)flat, (unsigned long long)bare);
    print_count("site_flat", rounds);
    return 0;
}
