// SPDX-License-Identifier: Apache-2.0
// All sixteen AVX registers, upper halves included, live across a displaced instruction.
// Usage: avx [MILLION_ROUNDS]        built with -mavx2
#include <immintrin.h>
#include "site.h"

enum { LANES = 14 };

__attribute__((noipa)) static uint64_t spin(uint64_t rounds)
{
    __m256i lane[LANES], step = _mm256_set_epi64x(0x1111, 0x2222, 0x3333, 0x4444);
    uint64_t words[4], sum = 0;
    for (int i = 0; i < LANES; i++)
        lane[i] = _mm256_set_epi64x(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
    for (uint64_t round = 0; round < rounds; round++) {
        SITE(site_avx);
#pragma GCC unroll 14
        for (int i = 0; i < LANES; i++)
            lane[i] = _mm256_xor_si256(_mm256_add_epi64(lane[i], step), lane[(i + 1) % LANES]);
    }
    for (int i = 0; i < LANES; i++) {
        _mm256_storeu_si256((__m256i *)words, lane[i]);
        for (int j = 0; j < 4; j++)
            sum = sum * 31 + words[j];
    }
    return sum;
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 100) * 1000000;
    if (!__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "avx: this CPU lacks AVX2\n");
        return 2;
    }
    printf("avx %016llx\n", (unsigned long long)spin(rounds));
    print_count("site_avx", rounds);
    return 0;
}
