// SPDX-License-Identifier: Apache-2.0
// Between two stretches of other work it needs a file for a while, by a name that is new in each run.
// Usage: scratch [MILLISECONDS OF EACH STRETCH] [MILLISECONDS WITH THE FILE]
#include <fcntl.h>
#include <unistd.h>
#include "site.h"

__attribute__((noipa)) static uint64_t other_work(uint64_t state)
{
    for (int i = 0; i < 400000; i++)
        state = (state ^ (state >> 7)) * 0x9e3779b97f4a7c15u;
    return state;
}

__attribute__((noipa)) static uint64_t last_work(uint64_t state)
{
    for (int i = 0; i < 400000; i++)
        state = (state + (state >> 9)) * 0xd6e8feb86659fd93u;
    return state;
}

int main(int argc, char **argv)
{
    char name[] = "scratch-XXXXXX";
    long milliseconds = size_argument(argc, argv, 400);
    long with_file = argc > 2 ? size_argument(argc - 1, argv + 1, 0) : 20;
    uint64_t state = 1;
    int kept = mkstemp(name);

    CHECK(3, kept >= 0 && !close(kept));
    for (long i = 0; i < milliseconds; i++)
        state = work(state);
    for (long i = 0; i < with_file; i++) {
        int again = open(name, O_RDONLY);
        CHECK(4, again >= 0);
        close(again);
        state = other_work(state);
    }
    unlink(name);
    for (long i = 0; i < milliseconds; i++)
        state = last_work(state);
    printf("scratch %016llx\n", (unsigned long long)state);
    return 0;
}
