// SPDX-License-Identifier: Apache-2.0
// Works, then exits with a status that says something: 10, as a solver for "satisfiable"; with a
// file, 10 and 20 by turns from run to run; with a dash it says on standard error which process it was.
// Usage: verdict [MILLISECONDS [- | FILE]]
#include <string.h>
#include <unistd.h>
#include "site.h"

static int turn(const char *path)
{
    FILE *file = fopen(path, "a+");
    if (!file || fputc('x', file) == EOF)
        return 2;
    long length = ftell(file);
    fclose(file);
    return length % 2 ? 10 : 20;
}

int main(int argc, char **argv)
{
    uint64_t state = 1;
    long milliseconds = size_argument(argc, argv, 300);
    for (long i = milliseconds; i; i--)
        state = work(state);
    printf("verdict %016llx\n", (unsigned long long)state);
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    if (argc > 2 && strcmp(argv[2], "-"))
        return turn(argv[2]);
    if (argc > 2)
        fprintf(stderr, "process %ld\n", (long)getpid());
    return 10;
}
