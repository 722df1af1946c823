// SPDX-License-Identifier: Apache-2.0
// Works, then exits with status 3.
// Usage: fail [MILLISECONDS]
#include "site.h"

int main(int argc, char **argv)
{
    uint64_t state = 1;
    for (long i = size_argument(argc, argv, 1000); i; i--)
        state = work(state);
    printf("fail %016llx\n", (unsigned long long)state);
    fprintf(stderr, "fail: as asked\n");
    return 3;
}
