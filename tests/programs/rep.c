// SPDX-License-Identifier: Apache-2.0
// String instructions over eight megabytes: one instruction each, however long they take.
// Usage: rep [ROUNDS]
#include "site.h"

enum { BYTES = 8 << 20 };
static uint8_t from[BYTES], to[BYTES];

__attribute__((noipa)) static void copy(void)
{
    const uint8_t *source = from;
    uint8_t *target = to;
    uint64_t count = BYTES;
    SITE(site_before_rep);
    __asm__ volatile(".globl site_rep\nsite_rep:\n\trep movsb"
                     : "+S"(source), "+D"(target), "+c"(count)
                     :
                     : "memory");
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 2000), sum = 0;
    for (int i = 0; i < BYTES; i++)
        from[i] = (uint8_t)(i * 31);
    for (uint64_t round = 0; round < rounds; round++) {
        from[round]++;
        copy();
        sum = sum * 31 + to[round] + to[BYTES - 1];
    }
    printf("rep %016llx\n", (unsigned long long)sum);
    print_count("site_before_rep", rounds);
    print_count("site_rep", rounds);
    return 0;
}
