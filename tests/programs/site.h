// SPDX-License-Identifier: Apache-2.0
// What every test program shares: counted sites, the size argument, a unit of plain work.
//
// A program prints "count NAME N" when the instruction at label NAME (of its own image) or
// IMAGE:NAME (of a library of its own) was executed exactly N times in the whole run.
#ifndef SITE_H
#define SITE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((unused)) static int site_sink;

// A label on an instruction of ten bytes whose displacement is not its last field.
// Use it in functions marked noipa only: a second copy would define the label twice.
#define SITE(name)                                                                                \
    __asm__ volatile(".globl " #name "\n\t.type " #name ", @notype\n" #name                       \
                     ":\n\tmovl $0x51735173, %0"                                                  \
                     : "=m"(site_sink))

// Ends a program that checks itself with a status of its own. Wants <unistd.h>.
#define CHECK(status, condition)                                                                  \
    do {                                                                                          \
        if (!(condition))                                                                         \
            _exit(status);                                                                        \
    } while (0)

__attribute__((unused)) static void print_count(const char *name, uint64_t count)
{
    printf("count %s %llu\n", name, (unsigned long long)count);
}

__attribute__((unused)) static long size_argument(int argc, char **argv, long fallback)
{
    if (argc < 2)
        return fallback;
    char *end;
    long size = strtol(argv[1], &end, 10);
    if (*end || end == argv[1] || size < 1) {
        fprintf(stderr, "%s: SIZE must be a positive number, not '%s'\n", argv[0], argv[1]);
        exit(2);
    }
    return size;
}

enum { WORK_UNITS = 1000 };

// About one millisecond: WORK_UNITS executions of site_work, the state mixed in between.
__attribute__((unused, noipa)) static uint64_t work(uint64_t state)
{
    state |= 1;
    for (int unit = 0; unit < WORK_UNITS; unit++) {
        SITE(site_work);
        for (int i = 0; i < 600; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
    }
    return state;
}

#endif
