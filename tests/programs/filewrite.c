// SPDX-License-Identifier: Apache-2.0
// Writes and appends to a file while it computes, then reads it back.
// Usage: filewrite [THOUSAND_LINES] [FILE]    FILE: filewrite.out beside the program
#include <string.h>
#include <unistd.h>
#include "site.h"

__attribute__((noipa)) static uint64_t next(uint64_t state)
{
    SITE(site_line);
    for (int i = 0; i < 600; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}

int main(int argc, char **argv)
{
    uint64_t lines = (uint64_t)size_argument(argc, argv, 500) * 1000, state = 1, hash = 1, read = 0;
    char path[4096], line[64];
    if (argc > 2) {
        snprintf(path, sizeof path, "%s", argv[2]);
    } else {
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
        path[length < 0 ? 0 : length] = 0;
        strcpy(strrchr(path, '/') + 1, "filewrite.out");
    }
    FILE *file = fopen(path, "w");
    for (uint64_t i = 0; file && i < lines; i++) {
        state = next(state);
        fprintf(file, "%llu %016llx\n", (unsigned long long)i, (unsigned long long)state);
        if (i == lines / 2)
            file = freopen(path, "a", file);
    }
    if (!file || fclose(file) || !(file = fopen(path, "r"))) {
        perror(path);
        return 2;
    }
    while (fgets(line, sizeof line, file)) {
        read++;
        for (const char *c = line; *c; c++)
            hash = hash * 31 + (uint8_t)*c;
    }
    fclose(file);
    printf("filewrite %llu %016llx\n", (unsigned long long)read, (unsigned long long)hash);
    print_count("site_line", lines);
    return read != lines;
}
