// SPDX-License-Identifier: Apache-2.0
// Control flow depends on addresses (code, heap, stack page): deterministic with ASLR off and one
// environment only. With "mmap" the address of a fresh mapping counts too, which mappings
// made by a tracer can move.
// Usage: addrhash [MILLISECONDS] [mmap]
#define _GNU_SOURCE
#include <sys/mman.h>
#include "site.h"

__attribute__((noipa)) static uint64_t even(uint64_t state)
{
    SITE(site_even);
    return work(state);
}

__attribute__((noipa)) static uint64_t odd(uint64_t state)
{
    SITE(site_odd);
    return work(state) * 3;
}

int main(int argc, char **argv)
{
    long milliseconds = size_argument(argc, argv, 500);
    uint64_t hash = 14695981039346656037u, state = 1, evens = 0;
    void *heap = malloc(100), *fresh = NULL;
    if (argc > 2)
        fresh = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t addresses[] = {(uintptr_t)main, (uintptr_t)heap, (uintptr_t)&hash >> 16, (uintptr_t)fresh};
    for (unsigned i = 0; i < sizeof addresses / sizeof *addresses; i++)
        hash = (hash ^ addresses[i]) * 1099511628211u;
    for (long i = 0; i < milliseconds; i++) {
        hash = hash * 6364136223846793005u + 1442695040888963407u;
        evens += hash >> 63;
        state = hash >> 63 ? even(state) : odd(state);
    }
    printf("addrhash %016llx\n", (unsigned long long)state);
    print_count("site_even", evens);
    print_count("site_odd", (uint64_t)milliseconds - evens);
    free(heap);
    return 0;
}
