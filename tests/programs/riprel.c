// SPDX-License-Identifier: Apache-2.0
// Instructions with operands relative to the instruction pointer, to be relocated.
// Usage: riprel [THOUSAND_ROUNDS]
#include "site.h"

uint64_t riprel_integer(uint64_t accumulator);
uint64_t riprel_avx2(uint64_t accumulator);

static const char *const integer_sites[] = {
    "load",  "lea",  "cmp32", "cmp8", "cmp16", "test",    "store32", "store16",  "store8",
    "store64", "add32", "add8",  "imul", "rol",   "bts",     "xadd",    "push",     "call",
    "jump",  "segment", "x87",   "sse_load", "sse_shuffle", "sse_insert", "sse_store", "sse_double"};
static const char *const avx_sites[] = {"load", "add", "shuffle", "insert", "blend", "store"};

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 10000) * 1000, sum = 1, avx = 1;
    if (!__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "riprel: this CPU lacks AVX2\n");
        return 2;
    }
    for (uint64_t round = 0; round < rounds; round++) {
        sum = riprel_integer(sum);
        avx = riprel_avx2(avx + round);
    }
    printf("riprel %016llx %016llx\n", (unsigned long long)sum, (unsigned long long)avx);
    for (unsigned i = 0; i < sizeof integer_sites / sizeof *integer_sites; i++)
        printf("count site_rip_%s %llu\n", integer_sites[i], (unsigned long long)rounds);
    for (unsigned i = 0; i < sizeof avx_sites / sizeof *avx_sites; i++)
        printf("count site_rip_avx_%s %llu\n", avx_sites[i], (unsigned long long)rounds);
    return 0;
}
