// SPDX-License-Identifier: Apache-2.0
// Works, then aborts.
// Usage: abort [MILLISECONDS]
#include "site.h"

int main(int argc, char **argv)
{
    uint64_t state = 1;
    for (long i = size_argument(argc, argv, 1000); i; i--)
        state = work(state);
    printf("abort %016llx\n", (unsigned long long)state);
    fflush(stdout);
    abort();
}
