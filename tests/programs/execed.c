// SPDX-License-Identifier: Apache-2.0
// What execer.c and execscript.sh turn into.
// Usage: execed [MILLISECONDS]
#include "site.h"

__attribute__((noipa)) static uint64_t after(uint64_t state)
{
    SITE(site_execed);
    return work(state + 1);
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 300);
    uint64_t state = 1;
    for (long i = 0; i < milliseconds; i++)
        state = after(state);
    printf("execed %016llx\n", (unsigned long long)state);
    print_count("execed:site_execed", (uint64_t)milliseconds);
    return 0;
}
