// SPDX-License-Identifier: Apache-2.0
// Reads pieces of a big text file at offsets of its own choosing and computes on them. The
// file stays open for the whole run, or with "reopen" is opened afresh for every piece.
// Usage: fileread [THOUSAND_PIECES] [FILE [reopen]]    FILE: text.txt beside the program
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "site.h"

__attribute__((noipa)) static uint64_t digest(const char *piece, ssize_t length, uint64_t hash)
{
    SITE(site_piece);
    for (ssize_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)piece[i]) * 1099511628211u;
    return hash;
}

int main(int argc, char **argv)
{
    uint64_t pieces = (uint64_t)size_argument(argc, argv, 200) * 1000, hash = 14695981039346656037u;
    char path[4096], piece[4096];
    if (argc > 2) {
        snprintf(path, sizeof path, "%s", argv[2]);
    } else {
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
        path[length < 0 ? 0 : length] = 0;
        strcpy(strrchr(path, '/') + 1, "text.txt");
    }
    int reopen = argc > 3, file = open(path, O_RDONLY);
    off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    if (size <= (off_t)sizeof piece) {
        fprintf(stderr, "fileread: cannot use %s\n", path);
        return 2;
    }
    for (uint64_t i = 0; i < pieces; i++) {
        if (reopen) {
            close(file);
            file = open(path, O_RDONLY);
        }
        off_t at = (off_t)(hash % ((uint64_t)size - sizeof piece));
        ssize_t length = lseek(file, at, SEEK_SET) < 0 ? -1 : read(file, piece, sizeof piece);
        if (length != sizeof piece) {
            perror(path);
            return 2;
        }
        hash = digest(piece, length, hash);
    }
    printf("fileread %016llx\n", (unsigned long long)hash);
    print_count("site_piece", pieces);
    return 0;
}
