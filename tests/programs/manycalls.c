// SPDX-License-Identifier: Apache-2.0
// A region that blocks and unblocks a signal so often, opens a file in the midst of that, and computes behind it.
// Usage: manycalls [TIMES] [PATH]
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include "site.h"

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

static void block_and_unblock(long times)
{
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    for (long i = 0; i < times; i++)
        sigprocmask(i % 2 ? SIG_UNBLOCK : SIG_BLOCK, &one, NULL);
}

__attribute__((noipa)) static uint64_t compute(uint64_t state)
{
    for (int i = 0; i < 20000000; i++)
        state = (state ^ (state >> 7)) * 0x9e3779b97f4a7c15u;
    return state;
}

int main(int argc, char **argv)
{
    const long times = size_argument(argc, argv, 40000);
    char first = 0;

    region_warm();
    region_start();
    block_and_unblock(times / 2);
    const int file = open(argc > 2 ? argv[2] : "/etc/passwd", O_RDONLY);
    if (file < 0 || read(file, &first, 1) != 1)
        return 2;
    block_and_unblock(times / 2);
    const uint64_t found = compute((uint64_t)first);
    region_end();
    printf("%llu\n", (unsigned long long)found);
    return 0;
}
