// SPDX-License-Identifier: Apache-2.0
// Drives the generated functions of bigtext_source.py through their table: every function,
// and the head of each of its units, exactly once a round.
// Usage: bigtext [ROUNDS]
#include "site.h"

typedef uint32_t function(uint32_t value);
extern function *const big_functions[];

int main(int argc, char **argv)
{
    long rounds = size_argument(argc, argv, 1500);
    uint32_t value = 1;
    int functions = 0;
    for (long round = 0; round < rounds; round++)
        for (functions = 0; big_functions[functions]; functions++)
            value = big_functions[functions](value) + (uint32_t)functions;
    printf("bigtext %08x\n", value);
    for (int i = 0; i < functions; i += 500)
        printf("count big_%04d %ld\n", i, rounds);
    return 0;
}
