// SPDX-License-Identifier: Apache-2.0
// Data in the middle of code, read relative to the instruction pointer and by address.
// Usage: datacode [ROUNDS]
#include "site.h"

uint64_t datacode_hash(uint64_t value);
uint64_t datacode_jump(uint64_t which, uint64_t value);
const void *datacode_absolute(void);
extern const uint8_t datacode_begin[], datacode_end[];

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 2000000), sum = 1, calls[4] = {0};
    const uint8_t *data = datacode_absolute();
    for (uint64_t round = 0; round < rounds; round++) {
        sum = datacode_hash(sum);
        unsigned which = sum & 3;
        sum = datacode_jump(which, sum) + data[round % 300];
        calls[which]++;
    }
    uint32_t bytes = 0;
    for (int i = 0; i < 300; i++)
        bytes = bytes * 31 + data[i];
    printf("datacode %016llx %08x %d\n", (unsigned long long)sum, bytes, data == datacode_begin);
    print_count("site_hash", rounds);
    for (int i = 0; i < 4; i++)
        printf("count datacode_case_%d %llu\n", i, (unsigned long long)calls[i]);
    return 0;
}
