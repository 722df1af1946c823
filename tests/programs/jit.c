// SPDX-License-Identifier: Apache-2.0
// Writes code at run time, runs it, and writes it anew: code that belongs to no image.
// Usage: jit [THOUSAND_ROUNDS]
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "site.h"

typedef uint64_t generated(uint64_t value);

__attribute__((noipa)) static void generate(uint8_t *code, uint32_t constant)
{
    // lea constant(%rdi,%rdi,2), %rax; ret
    static const uint8_t template[] = {0x48, 0x8d, 0x84, 0x7f, 0, 0, 0, 0, 0xc3};
    SITE(site_generate);
    memcpy(code, template, sizeof template);
    memcpy(code + 4, &constant, sizeof constant);
}

int main(int argc, char **argv)
{
    uint64_t rounds = (uint64_t)size_argument(argc, argv, 2000) * 1000, value = 1, expected = 1;
    enum { CALLS = 100 };
    uint8_t *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) {
        perror("jit");
        return 2;
    }
    generated *run;
    *(void **)&run = code;
    for (uint64_t round = 0; round < rounds; round++) {
        uint32_t constant = (uint32_t)(round * 2654435761u) >> 1;
        generate(code, constant);
        for (int i = 0; i < CALLS; i++) {
            value = run(value);
            expected = expected * 3 + constant;
        }
    }
    printf("jit %016llx %s\n", (unsigned long long)value, value == expected ? "ok" : "WRONG");
    print_count("site_generate", rounds);
    return value != expected;
}
