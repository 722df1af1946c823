// SPDX-License-Identifier: Apache-2.0
// Goes on where its last run has left off: a file "resumes.state" in its folder tells that it got
// through its first half. The first run, and each later one, do other work there.
// Usage: resumes [ROUNDS]
#include "site.h"

static uint64_t sum = 1;

__attribute__((noinline)) static void from_nothing(long count)
{
    for (long i = 0; i < count; i++)
        sum = (sum ^ (sum >> 9)) * 0x9e3779b97f4a7c15u + (uint64_t)i;
}

__attribute__((noinline)) static void from_state(long count)
{
    for (long i = 0; i < count; i++)
        if ((sum = sum * 6364136223846793005u + 1442695040888963407u) >> 63)
            sum ^= (uint64_t)i;
}

__attribute__((noinline)) static void second_half(long count)
{
    for (long i = 0; i < count; i++)
        sum += (sum << 3) ^ (sum >> 11) ^ (uint64_t)i;
}

int main(int argc, char **argv)
{
    long rounds = size_argument(argc, argv, 100);
    FILE *state = fopen("resumes.state", "r");
    for (long round = 0; round < rounds; round++) {
        if (state)
            from_state(400000);
        else
            from_nothing(1500000);
    }
    if (state)
        fclose(state);
    for (long round = 0; round < rounds; round++)
        second_half(1500000);
    state = fopen("resumes.state", "w");
    if (!state) {
        perror("resumes.state");
        return 2;
    }
    fclose(state);
    printf("resumes\n");
    return 0;
}
