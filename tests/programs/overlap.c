// SPDX-License-Identifier: Apache-2.0
// Direct jumps into the middle of instructions, and overlapping blocks.
// Usage: overlap [THOUSAND_ROUNDS]
#include "site.h"

void overlap_lock(int locked);
uint64_t overlap_short(uint64_t inside);
uint64_t overlap_long(uint64_t inside);
uint64_t overlap_loop(uint64_t rounds);
extern volatile uint32_t overlap_cell;

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 30000) * 1000, inside = 0, sum = 0, wrong = 0;
    enum { LOOP = 20 };
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t enter = round % 3 == 0;
        inside += enter;
        overlap_lock(!enter);
        wrong += overlap_short(enter) != (enter ? 7 : 0x90c7ff48u);
        wrong += overlap_long(enter) != (enter ? 2u * 0x44332211u : 0x90909044332211b9u);
        sum = sum * 31 + overlap_loop(LOOP);
    }
    wrong += overlap_cell != (uint32_t)(0x01010101u * rounds);
    printf("overlap %016llx wrong %llu\n", (unsigned long long)sum, (unsigned long long)wrong);
    print_count("site_locked", rounds - inside);
    print_count("site_unlocked", inside);
    print_count("site_outer", rounds - inside);
    print_count("site_inner", inside);
    print_count("site_long_outer", rounds - inside);
    print_count("site_long_inner", inside);
    print_count("site_head", rounds);
    print_count("site_middle", rounds * LOOP);
    return wrong != 0;
}
