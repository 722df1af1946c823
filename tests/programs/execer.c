// SPDX-License-Identifier: Apache-2.0
// Works, then replaces itself by the program "execed" beside it.
// Usage: execer [MILLISECONDS]
#include <string.h>
#include <unistd.h>
#include "site.h"

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 300);
    char path[4096], size[32];
    uint64_t state = 1;
    for (long i = 0; i < milliseconds; i++)
        state = work(state);
    printf("execer %016llx\n", (unsigned long long)state);
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    fflush(stdout);
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
    if (length < 0) {
        perror("execer");
        return 2;
    }
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "execed");
    snprintf(size, sizeof size, "%ld", milliseconds);
    execl(path, path, size, (char *)NULL);
    perror(path);
    return 2;
}
