// SPDX-License-Identifier: Apache-2.0
// Works, then dies of SIGSEGV.
// Usage: crash [MILLISECONDS]
#include "site.h"

static int *volatile nowhere;

int main(int argc, char **argv)
{
    uint64_t state = 1;
    for (long i = size_argument(argc, argv, 1000); i; i--)
        state = work(state);
    printf("crash %016llx\n", (unsigned long long)state);
    fflush(stdout);
    return *nowhere;
}
