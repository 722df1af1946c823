// SPDX-License-Identifier: Apache-2.0
// Spends its time asking for the time, so that a checkpoint would often land in the vDSO.
// Usage: vdso [THOUSAND_CALLS]
#include <time.h>
#include "site.h"

__attribute__((noipa)) static int64_t now(void)
{
    struct timespec time;
    SITE(site_now);
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv)
{
    uint64_t calls = (uint64_t)size_argument(argc, argv, 20000) * 1000, backwards = 0;
    int64_t last = 0;
    for (uint64_t i = 0; i < calls; i++) {
        int64_t time = now();
        backwards += time < last;
        last = time;
    }
    printf("vdso backwards %llu\n", (unsigned long long)backwards);
    print_count("site_now", calls);
    return backwards != 0;
}
