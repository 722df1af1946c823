// SPDX-License-Identifier: Apache-2.0
// Holds a pipe with data in it while it works.
// Usage: pipe [MILLISECONDS]
#include <unistd.h>
#include "site.h"

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 500);
    int ends[2];
    uint64_t state = 1, first = 0x0123456789abcdef, received = 0;
    if (pipe(ends) || write(ends[1], &first, sizeof first) != sizeof first) {
        perror("pipe");
        return 2;
    }
    for (long i = 0; i < milliseconds; i++)
        state = work(state);
    if (read(ends[0], &received, sizeof received) != sizeof received) {
        perror("pipe");
        return 2;
    }
    printf("pipe %016llx %s\n", (unsigned long long)state, received == first ? "ok" : "WRONG");
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    return received != first;
}
