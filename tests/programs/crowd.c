// SPDX-License-Identifier: Apache-2.0
// Works in memory of many pages. Usage: crowd MILLISECONDS KIND PAGES [MEGABYTES]
// KIND areas: as many mappings; full: and no more than a process may have; pages: an untouched one behind each;
// block: all in one piece
// MEGABYTES: asked for besides, and never touched
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "site.h"

enum { PAGE = 4096, REGION = 40, MOST_READ = 500 };

static char *area;

__attribute__((noipa)) static void region_warm(void) { SITE(site_warm); }
__attribute__((noipa)) static void region_start(void) { SITE(site_start); }
__attribute__((noipa)) static void region_end(void) { SITE(site_end); }

// Neighbours of different protection do not become one mapping.
static int divide(long pieces)
{
    for (long piece = 0; piece < pieces; piece += 2)
        if (mprotect(area + piece * PAGE, PAGE, PROT_READ))
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 10), pieces = argc > 3 ? atol(argv[3]) : 100;
    const char *kind = argc > 2 ? argv[2] : "block";
    long step = strcmp(kind, "pages") ? PAGE : 2 * PAGE;
    uint64_t state = 1;
    area = mmap(NULL, pieces * 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(2, area != MAP_FAILED && !madvise(area, pieces * 2 * PAGE, MADV_NOHUGEPAGE));
    for (long piece = 0; piece < pieces; piece++)
        area[piece * step] = (char)(piece + 1);
    if (!strcmp(kind, "full"))
        divide(pieces);
    if (!strcmp(kind, "areas") && !divide(pieces)) {
        perror("crowd");
        return 3;
    }
    size_t besides = argc > 4 ? (size_t)atol(argv[4]) << 20 : PAGE;
    CHECK(2, mmap(NULL, besides, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    for (long i = 0; i < milliseconds; i++) {
        if (i % REGION == 0)
            region_warm();
        state = work(state);
        if (i % REGION == 0)
            region_start();
        for (long piece = pieces - 1; piece >= 0 && piece >= pieces - MOST_READ; piece--)
            CHECK(4, area[piece * step] == (char)(piece + 1));
        if (i % REGION == 0)
            region_end();
    }
    printf("crowd %llu\n", (unsigned long long)state);
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    return 0;
}
