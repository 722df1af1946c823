// SPDX-License-Identifier: Apache-2.0
// Code chosen for the CPU: a function of its own dispatched by GNU ifunc, another by
// __builtin_cpu_supports, and the C library's string functions. All choices compute the same.
// Usage: ifunc [THOUSAND_ROUNDS]
#include <string.h>
#include "site.h"

enum { LENGTH = 512 };

#define SUM_BODY                                                                                  \
    uint32_t sum = 0;                                                                             \
    for (int i = 0; i < LENGTH; i++)                                                              \
        sum += values[i] * (uint32_t)(i + 1) ^ values[i] >> 3;                                    \
    return sum

__attribute__((noipa)) static uint32_t sum_plain(const uint32_t *values) { SUM_BODY; }
__attribute__((noipa, optimize("O3"), target("avx2"))) static uint32_t sum_avx2(const uint32_t *values)
{
    SUM_BODY;
}
__attribute__((noipa, optimize("O3"), target("avx512f"))) static uint32_t sum_avx512(const uint32_t *values)
{
    SUM_BODY;
}

typedef uint32_t summer(const uint32_t *values);

static summer *choose_sum(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return sum_avx512;
    return __builtin_cpu_supports("avx2") ? sum_avx2 : sum_plain;
}

uint32_t sum_dispatched(const uint32_t *values) __attribute__((ifunc("choose_sum")));

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 5000) * 1000, sum = 0, lengths = 0;
    static uint32_t values[LENGTH];
    static char from[8192], to[8192];
    for (int i = 0; i < LENGTH; i++)
        values[i] = (uint32_t)i * 2654435761u;
    memset(from, 'x', sizeof from - 1);
    uint64_t wrong = sum_plain(values) != sum_dispatched(values);
    for (uint64_t round = 0; round < rounds; round++) {
        size_t length = 16 + (round * 37) % 8000;
        values[round % LENGTH] += (uint32_t)round;
        sum = sum * 31 + sum_dispatched(values);
        memcpy(to, from + sizeof from - 1 - length, length + 1);
        lengths += strlen(to);
        wrong += __builtin_cpu_supports("avx2") && round % 1000 == 0 && sum_avx2(values) != sum_plain(values);
    }
    printf("ifunc %016llx %llu wrong %llu\n", (unsigned long long)sum, (unsigned long long)lengths,
           (unsigned long long)wrong);
    return wrong != 0;
}
