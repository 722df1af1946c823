// SPDX-License-Identifier: Apache-2.0
// Works in place: does as many units of work as its file has bytes, and takes a tenth of these away.
// Usage: inplace FILE
#include <unistd.h>
#include "site.h"

int main(int argc, char **argv)
{
    uint64_t state = 1;
    long size;
    FILE *file;

    if (argc < 2) {
        puts("inplace: FILE");
        return 2;
    }
    CHECK(4, (file = fopen(argv[1], "r")) && !fseek(file, 0, SEEK_END));
    size = ftell(file);
    fclose(file);
    for (long i = 0; i < size; i++)
        state = work(state);
    CHECK(3, !truncate(argv[1], size - size / 10));
    printf("inplace %016llx\n", (unsigned long long)state);
    return 0;
}
