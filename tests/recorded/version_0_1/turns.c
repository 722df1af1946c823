// SPDX-License-Identifier: Apache-2.0
// Turns of dividing, of sorting and of walking through a table; without a C library, so that a probe of it is small.
// Usage: turns
#include <stdint.h>

enum { VALUES = 4096, TURNS = 5, DIVISIONS = 9000000, SORTS = 900, STEPS = 14000000, WRITE = 1, EXIT = 60 };

static uint32_t values[VALUES];
static uint32_t seed = 12345;

static long syscall3(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static uint32_t random_number(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed;
}

static uint64_t divide(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 1; i <= DIVISIONS; i++)
        sum += (0x123456789abcdefULL + sum) / (i | 1);
    return sum;
}

// Shell's sort with halved gaps.
static uint64_t sort(void)
{
    for (uint32_t i = 0; i < VALUES; i++)
        values[i] = random_number();
    for (uint32_t gap = VALUES / 2; gap; gap /= 2)
        for (uint32_t i = gap; i < VALUES; i++) {
            uint32_t value = values[i], j = i;
            for (; j >= gap && values[j - gap] > value; j -= gap)
                values[j] = values[j - gap];
            values[j] = value;
        }
    return values[VALUES / 2];
}

static uint64_t walk(void)
{
    uint32_t at = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        at = (at + values[at] + i) % VALUES;
        sum += at;
    }
    return sum;
}

__attribute__((force_align_arg_pointer, noreturn)) void _start(void)
{
    uint64_t sum = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        sum += divide();
        for (int i = 0; i < SORTS / TURNS; i++)
            sum += sort();
        sum += walk();
    }
    char line[17];
    for (int i = 15; i >= 0; i--, sum >>= 4)
        line[i] = "0123456789abcdef"[sum & 15];
    line[16] = '\n';
    syscall3(WRITE, 1, (long)line, sizeof line);
    syscall3(EXIT, 0, 0, 0);
    __builtin_unreachable();
}
