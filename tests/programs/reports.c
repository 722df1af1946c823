// SPDX-License-Identifier: Apache-2.0
// Reports its progress in a region where a file is there, as others do by the clock: in one run, and not in the next.
// Usage: reports FILE
#include <unistd.h>
#include "site.h"

// On a page that nothing else is on.
static union {
    FILE *stream;
    char page[4096];
} to __attribute__((aligned(4096)));

__attribute__((noipa)) static void warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void start(void) { SITE(site_start); }
__attribute__((noipa)) static void end(void) { SITE(site_end); }

int main(int argc, char **argv)
{
    uint64_t state = 1;

    if (argc < 2) {
        puts("reports: FILE");
        return 2;
    }
    to.stream = stderr;
    fprintf(to.stream, "begun\n");
    warm();
    start();
    for (int i = 0; i < 20; i++) {
        state = work(state);
        if (!access(argv[1], F_OK))
            fprintf(to.stream, "at %d\n", i);
    }
    end();
    fprintf(to.stream, "%llu\n", (unsigned long long)state);
    return 0;
}
