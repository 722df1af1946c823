// SPDX-License-Identifier: Apache-2.0
// Looks at the call that led to it, as Mono does with code that was compiled beforehand: aborts where
// that call leads elsewhere. Then works with numbers, in two phases.
// Usage: callreader [ROUNDS]
#include <string.h>
#include "site.h"

static uint64_t sum = 1;

__attribute__((noinline)) static void called(void)
{
    const unsigned char *after = __builtin_return_address(0);
    int32_t distance;
    memcpy(&distance, after - 4, sizeof distance);
    if (after[-5] != 0xe8 || after + distance != (const unsigned char *)called)
        abort();
    sum = sum * 6364136223846793005u + 1442695040888963407u;
}

int main(int argc, char **argv)
{
    long rounds = size_argument(argc, argv, 40);
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < 2000000; i++)
            called();
        for (long i = 0; i < 8000000; i++)
            sum = (sum ^ (sum >> 7)) + 0x9e3779b97f4a7c15u * (uint64_t)i;
    }
    printf("callreader %llu\n", (unsigned long long)sum);
    return 0;
}
