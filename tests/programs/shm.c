// SPDX-License-Identifier: Apache-2.0
// Shared mappings, one anonymous and one of a memory file, in use all the time.
// Usage: shm [MILLISECONDS]
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#include "site.h"

enum { WORDS = 1 << 16 };

static uint64_t *map(int file)
{
    int flags = MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0);
    void *words = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, flags, file, 0);
    if (words == MAP_FAILED) {
        perror("shm");
        exit(2);
    }
    return words;
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 500);
    int file = memfd_create("shm", 0);
    if (file < 0 || ftruncate(file, WORDS * sizeof(uint64_t))) {
        perror("shm");
        return 2;
    }
    uint64_t *anonymous = map(-1), *named = map(file), state = 1, sum = 0;
    for (long i = 0; i < milliseconds; i++) {
        state = work(state);
        anonymous[state % WORDS] += state;
        named[(state >> 32) % WORDS] ^= state;
    }
    for (int i = 0; i < WORDS; i++)
        sum = sum * 31 + (anonymous[i] ^ named[i]);
    printf("shm %016llx\n", (unsigned long long)sum);
    print_count("site_work", (uint64_t)milliseconds * WORK_UNITS);
    return 0;
}
