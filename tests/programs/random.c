// SPDX-License-Identifier: Apache-2.0
// Control flow depends on the time, the process id and random bytes: two runs diverge though
// their output is the same. With "loud" the output differs too. Each run has odds of its own, so
// that two runs execute a site equally often once in thousands of pairs.
// Usage: random [MILLISECONDS] [loud]
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include "site.h"

enum { STEPS = 10 };

__attribute__((noipa)) static uint64_t left(uint64_t state)
{
    SITE(site_left);
    for (int i = 0; i < 60000; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}

__attribute__((noipa)) static uint64_t right(uint64_t state)
{
    SITE(site_right);
    for (int i = 0; i < 30000; i++)
        state = state * 6364136223846793005u + 1442695040888963407u;
    return state;
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 500);
    struct timespec now;
    uint64_t seed = 0;
    int source = open("/dev/urandom", O_RDONLY);
    if (source < 0 || read(source, &seed, sizeof seed) != sizeof seed ||
        clock_gettime(CLOCK_REALTIME, &now)) {
        perror("random");
        return 2;
    }
    close(source);
    seed ^= (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 32;
    uint64_t state = seed | 1;
    uint64_t odds = seed >> 1 | (uint64_t)1 << 61;
    for (long i = 0; i < milliseconds * STEPS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        state = seed < odds ? right(state) : left(state);
    }
    printf("random %ld\n", milliseconds);
    if (argc > 2)
        printf("state %016llx\n", (unsigned long long)state);
    return 0;
}
